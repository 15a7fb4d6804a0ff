"""The pass manager: order, graphs of their own, and checks that are able to fail."""

from dataclasses import dataclass, replace

import pytest
from torch import fx

from sp.passes import pipeline
from sp.passes.manager import run_passes
from sp.passes.normalize import Normalize
from sp.passes.place import Place
from sp.program import Program
from tests.passes.programs import IDS_BS, ops, program_of


@dataclass(frozen=True)
class Probe:
    """A pass that does what it is told."""

    name: str = "probe"
    erase: str = ""
    ensures: str = ""
    disorder: bool = False

    def run(self, program: Program) -> Program:
        for node in [node for node in program.graph.nodes if node.name == self.erase]:
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
        if self.disorder:
            first, *_, last = [node for node in program.graph.nodes if node.op == "call_function"]
            last.append(first)
        return program.note(self.name, "ran")

    def check(self, program: Program) -> None:
        assert all(node.name != self.ensures for node in program.graph.nodes), f"{self.name} left {self.ensures}"


@pytest.fixture
def program() -> Program:
    return program_of(lambda m, ids: m.l(m.e(ids)).relu().tanh(), IDS_BS)


def test_order_and_observation(program: Program) -> None:
    seen: list[tuple[str, int]] = []

    def observe(name: str, stage: Program) -> None:
        seen.append((name, len(stage.graph.nodes)))

    done = run_passes(program, [Probe("a", erase="relu"), Probe("b", erase="tanh"), Probe("c")], observe)
    nodes = len(program.graph.nodes)
    assert seen == [("a", nodes - 1), ("b", nodes - 2), ("c", nodes - 2)]
    assert [note.stage for note in done.history[-3:]] == ["a", "b", "c"]


def test_the_input_stays_as_it_is(program: Program) -> None:
    done = run_passes(program, [Probe("a", erase="relu"), Probe("b", erase="tanh")])
    assert {"aten.relu", "aten.tanh"} <= set(ops(program))
    assert not {"aten.relu", "aten.tanh"} & set(ops(done))


def test_stages_that_are_kept_have_graphs_of_their_own(program: Program) -> None:
    stages: list[Program] = [program]
    probes = [Probe("a", erase="relu"), Probe("b", erase="tanh")]
    run_passes(program, probes, lambda _, stage: stages.append(stage), keep_stages=True)
    assert ["aten.relu" in ops(stage) for stage in stages] == [True, False, False]
    assert ["aten.tanh" in ops(stage) for stage in stages] == [True, True, False]
    assert len({id(stage.graph) for stage in stages}) == 3
    assert len({tuple(map(id, stage.graph_module.parameters())) for stage in stages}) == 1  # parameters are shared


def test_a_pass_that_breaks_its_promise_is_caught(program: Program) -> None:
    with pytest.raises(AssertionError, match="liar left tanh"):
        run_passes(program, [Probe("liar", erase="relu", ensures="tanh")])


def test_the_result_is_checked_and_not_the_input(program: Program) -> None:
    run_passes(program, [Probe("honest", erase="tanh", ensures="tanh")])


def test_a_graph_out_of_order_is_caught(program: Program) -> None:
    with pytest.raises(RuntimeError, match="used before it has been defined"):
        run_passes(program, [Probe(disorder=True)])


def test_no_passes(program: Program) -> None:
    assert run_passes(program, []) is program


def test_forks_print_and_hash_alike(program: Program) -> None:
    fork = program.fork()
    assert str(fork.graph) == str(program.graph)
    assert fork.digest() == program.digest()
    assert run_passes(program, [Probe(erase="relu")]).digest() != program.digest()
    assert replace(program, strategy=replace(program.strategy, layout="zigzag")).digest() != program.digest()


def test_pipeline() -> None:
    """Every pass has a name of its own and options in its fields; the order is what it is for a reason."""
    passes = pipeline(outputs="local", kernel="dense")
    assert [step.name for step in passes] == [
        *("outputs", "inline", "flex", "autocast", "functionalize", "detach", "normalize", "canonical"),
        *("recognize", "noise", "attention", "decompose", "reduce", "place", "localize", "overlap", "verify"),
    ]
    assert passes[10].kernel == "dense"
    assert passes[0].outputs == passes[14].outputs == "local"
    assert passes == pipeline(outputs="local", kernel="dense")


def test_two_captures_of_one_model_agree() -> None:
    """Ranks compare digests: nothing in a program may depend on when or where it was made."""

    def forward(m: object, ids: object) -> object:
        return m.l(m.e(ids)).flatten(0, 1).sum(0)  # type: ignore[attr-defined]

    digests = {program_of(forward, IDS_BS, passes=pipeline()).digest() for _ in range(3)}
    assert len(digests) == 1


def test_passes_leave_what_they_are_given(program: Program) -> None:
    before = str(program.graph)
    run_passes(program, [Normalize(), Place()])
    assert str(program.graph) == before
    assert isinstance(program.graph, fx.Graph)
