"""Size expressions as nodes of a graph, read from inputs."""

from dataclasses import replace

import pytest
import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from sp.passes.sizes import Sizes
from sp.program import Port, Program
from tests.passes.programs import IDS_BS, program_of


@pytest.fixture
def program() -> Program:
    return program_of(lambda m, ids, other: m.e(ids) + other[..., None], IDS_BS, torch.zeros(2, 9))


def symbols(program: Program) -> tuple[sympy.Symbol, sympy.Symbol]:
    value = program.graph.find_nodes(op="placeholder")[0].meta["val"]
    return value.shape[0].node.expr, value.shape[1].node.expr


EXPRESSIONS = {
    "S": lambda B, S: S,
    "B*S": lambda B, S: B * S,
    "S - 1": lambda B, S: S - 1,
    "2*B*S + 3": lambda B, S: 2 * B * S + 3,
    "S**2": lambda B, S: S**2,
    "S // 2": lambda B, S: FloorDiv(S, 2),
    "S % 4": lambda B, S: Mod(S, 4),
    "max(S, 20)": lambda B, S: Max(S, 20),
    "min(S, 3)": lambda B, S: Min(S, 3),
    "(S - 1) // 2 * B": lambda B, S: FloorDiv(S - 1, 2) * B,
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_graph_computes_it(name: str, program: Program) -> None:
    program = program.fork()
    B, S = symbols(program)
    expression = EXPRESSIONS[name](B, S)
    output = program.graph.output_node()
    with program.graph.inserting_before(output):
        node = Sizes(program).node(expression)
    output.args = ((node,),)
    program.graph.lint()
    program.graph_module.recompile()
    for batch, length in ((2, 9), (3, 24)):
        (found,) = program.graph_module(torch.zeros(batch, length, dtype=torch.long), torch.zeros(batch, length))
        assert found == int(expression.subs({B: batch, S: length}))


def test_constants_need_no_node(program: Program) -> None:
    nodes = len(program.graph.nodes)
    assert Sizes(program).node(sympy.Integer(7)) == 7
    assert len(program.graph.nodes) == nodes


def test_each_size_is_computed_once(program: Program) -> None:
    program = program.fork()
    B, S = symbols(program)
    sizes = Sizes(program)
    with program.graph.inserting_before(program.graph.output_node()):
        assert sizes.node(B * S) is sizes.node(B * S)
        assert sizes.node(S) is sizes.node(S)


def test_a_read_that_exists_is_moved_to_where_all_can_see_it() -> None:
    program = program_of(lambda m, ids: m.e(ids) * 2 + ids.shape[1], IDS_BS).fork()
    (existing,) = [node for node in program.graph.nodes if "sym_size" in node.name]
    program.graph.output_node().prepend(existing)
    found = Sizes(program).node(program.sequence.symbol)
    assert found is existing
    assert list(program.graph.nodes).index(existing) < 6


def test_shards_do_not_tell_the_global_length(program: Program) -> None:
    local = replace(program, inputs=(Port("inputs_0", 1, local=True), Port("inputs_1", 1))).fork()
    node = Sizes(local).node(local.sequence.symbol)
    assert isinstance(node, fx.Node)
    assert node.args == (local.graph.find_nodes(op="placeholder")[1], 1)
    alone = replace(program, inputs=(Port("inputs_0", 1, local=True), Port("inputs_1", 1, local=True)))
    with pytest.raises(AssertionError, match="no input has the size"):
        Sizes(alone).node(alone.sequence.symbol)


def test_what_it_knows() -> None:
    program = program_of(lambda m, ids: m.e(ids[ids > 3]), IDS_BS)
    sizes = Sizes(program)
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    assert sizes.knows(values["inputs_0"].shape[1])
    assert not sizes.knows(values["embedding"].shape[0])  # as many as the contents say
    assert not sizes.knows(3)
    assert not sizes.knows(None)
