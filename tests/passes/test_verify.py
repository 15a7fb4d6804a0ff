"""Verify accepts what the pipeline makes, and finds every kind of mistake that is planted in it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from sp.passes import pipeline
from sp.passes.attention import AXIS
from sp.passes.fxtools import op_name
from sp.passes.verify import Verify
from sp.program import Port, Program, Replicated, Sharded
from tests.passes.programs import IDS_BS, Small, program_of


def forward(m: Small, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Every kind of edge: parameters, a table cut, a span, a reduction, an output that is gathered."""
    h = m.l(m.e(ids)) + m.p[: ids.shape[1]]
    h = h * h.sum(1, keepdim=True).tanh()
    shifted = h[:, 1:].flatten(0, 1)
    return F.cross_entropy(shifted, (ids[:, 1:] % 4).flatten()), h


@pytest.fixture
def program() -> Program:
    *passes, last = pipeline()
    assert isinstance(last, Verify)
    return program_of(forward, IDS_BS, passes=passes)


def find(program: Program, op: str, number: int = 0) -> fx.Node:
    return [node for node in program.graph.nodes if op_name(node) == op][number]


def bypass(op: str, number: int = 0) -> Callable[[Program], Program]:
    def plant(program: Program) -> Program:
        node = find(program, op, number)
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
        return program

    return plant


def bypass_one_of_many(program: Program) -> Program:
    replicas = find(program, "sp.replicate_all")
    (first, *_) = replicas.users
    first.replace_all_uses_with(replicas.args[0][first.args[1]])  # type: ignore[index]
    return program


def misplace(op: str, **changes: object) -> Callable[[Program], Program]:
    def plant(program: Program) -> Program:
        node = find(program, op)
        node.meta["placement"] = replace(node.meta["placement"], **changes)
        return program

    return plant


def claim_whole(program: Program) -> Program:
    find(program, "aten.tanh").meta["placement"] = Replicated()
    find(program, "aten.linear").meta["placement"] = Replicated()
    return program


def multiply_positions(program: Program) -> Program:
    shard, output = find(program, "aten.add"), program.graph.output_node()
    with program.graph.inserting_before(output):
        square = program.graph.call_function(torch.ops.aten.matmul.default, (shard, shard))
    value = shard.meta["val"]
    square.meta = {"val": value @ value.mT, "placement": shard.meta["placement"]}
    return program


def read_a_whole_table(program: Program) -> Program:
    """The table, whole, where the op needs its shard."""
    shard = next(node for node in program.graph.nodes if node.name.startswith("shard") and "slice" in str(node.args[0]))
    with program.graph.inserting_before(shard):
        whole = program.graph.call_function(torch.ops.sp.replicate.default, (shard.args[0], AXIS))
    whole.meta = dict(shard.args[0].meta)
    shard.replace_all_uses_with(whole)
    return program


def slice_along_the_sequence(program: Program) -> Program:
    narrow = find(program, "sp.narrow")
    narrow.target, narrow.args = torch.ops.aten.slice.Tensor, (narrow.args[0], 1, 1, None)
    narrow.meta["placement"] = narrow.args[0].meta["placement"]
    return program


def sum_without_partial(program: Program) -> Program:
    node = find(program, "aten.sum")
    node.meta["placement"] = find(program, "aten.linear").meta["placement"]
    return program


def gather_for_nobody(program: Program) -> Program:
    whole = find(program, "sp.unshard")
    with program.graph.inserting_before(whole):
        program.graph.node_copy(whole)
    return program


def unknown_op(program: Program) -> Program:
    node = find(program, "aten.mul")
    node.target = torch.ops.aten.kron.default
    return program


def local_port(program: Program) -> Program:
    loss, rest = program.outputs
    return replace(program, outputs=(Port(loss.name, None, local=True), rest))


PLANTED: dict[str, tuple[Callable[[Program], Program], str]] = {
    "a parameter past sp.replicate_all": (
        bypass_one_of_many,
        "past sp.replicate: its gradient would be one rank's part",
    ),
    "a reduced value past sp.replicate": (bypass("sp.replicate"), "past sp.replicate"),
    "a partial sum past sp.reduce": (bypass("sp.reduce"), "each rank's part of a sum, past sp.reduce"),
    "a loss past sp.reduce": (bypass("sp.reduce", 1), "each rank's part of a sum, past sp.reduce"),
    "an output past sp.unshard": (bypass("sp.unshard"), "output '1' is sharded(dim 1), its port is"),
    "a whole value instead of its shard": (read_a_whole_table, "as sharded(dim 0)"),
    "a shard said to be whole": (claim_whole, "mixes shards into a replicated value"),
    "a shard in another dim": (misplace("aten.linear", dim=0), "its rule says sharded(dim 1)"),
    "a shard said to be a span": (misplace("aten.embedding", start=1), "its rule says sharded(dim 1)"),
    "a slice of a shard": (slice_along_the_sequence, "its rule says sharded(dim 1, [1:"),
    "a sum said to be a shard": (sum_without_partial, "its rule says partial(sum)"),
    "an op without a rule": (unknown_op, "has no rule for what it reads: sp has no placement rule for aten.kron"),
    "a gather that nobody reads": (gather_for_nobody, "nobody reads unshard_1, which has travelled"),
    "an output that is not local": (local_port, "output '0' is replicated, its port is"),
    "sequence × sequence": (multiply_positions, "is sequence × sequence"),
}


def test_the_pipelines_work_is_accepted(program: Program) -> None:
    done = Verify().run(program.fork())
    assert done.history[-1].text.endswith("every border op in its place, no S × S value")
    assert any(isinstance(placement, Sharded) for placement in done.placements.values())


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistake_is_found(name: str, program: Program) -> None:
    plant, message = PLANTED[name]
    with pytest.raises(AssertionError) as caught:
        Verify().run(plant(program.fork()))
    assert message in str(caught.value)


@pytest.mark.parametrize("outputs", ["global", "local", {"1": "local"}])
def test_every_form_of_outputs_is_accepted(outputs: object) -> None:
    program_of(forward, IDS_BS, passes=pipeline(outputs=outputs))  # type: ignore[arg-type]
