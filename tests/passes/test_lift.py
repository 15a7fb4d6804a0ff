"""Dims before queries and keys become batch and heads; what is not so is refused."""

import pytest
import sympy
import torch
from torch import Tensor, fx

from sp.passes.builder import Builder
from sp.passes.fxtools import op_name, shape
from sp.passes.lift import Lift, split
from sp.passes.rules import Refused
from sp.program import Program
from tests.passes.programs import Attend, listing, normalized

B = sympy.Symbol("B", integer=True, positive=True)


def program_of(way: object) -> Program:
    return normalized(Attend(way), torch.zeros(2, 4, 9, 8))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("outer", "expected"),
    [
        ((), (1, 1)),
        ((4 * B,), (B, 4)),  # heads are the number
        ((B,), (B, 1)),
        ((sympy.Integer(8),), (1, 8)),
        ((B, sympy.Integer(4)), (B, 4)),
        ((B, sympy.Integer(2), sympy.Integer(3)), (B, 6)),
    ],
)
def test_split(outer: tuple[sympy.Expr, ...], expected: tuple[object, object]) -> None:
    assert split(outer, []) == expected


def merged(x: Tensor) -> Tensor:
    scores = (x.flatten(0, 1) @ x.flatten(0, 1).mT).view(x.shape[0], 2, 2, x.shape[2], x.shape[2])
    return scores.flatten(0, 2).softmax(-1)


def test_split_as_the_graph_does() -> None:
    """[8, S, S] was 2 × 4 to the model, where the numbers alone would say 1 × 8."""
    program = normalized(Attend(lambda x: (x @ x.mT).flatten(0, 1)), torch.zeros(2, 4, 9, 8), sequence_dim={"x": 2})
    (flat,) = [node for node in program.graph.nodes if op_name(node) == "aten.flatten"]
    matmul = flat.args[0]
    assert isinstance(matmul, fx.Node)
    assert split(shape(flat)[:-2], [flat, matmul]) == shape(matmul)[:2]


def test_reshaped_scores_are_refused() -> None:
    program = program_of(lambda x: x @ x.mT)
    (matmul,) = [node for node in program.graph.nodes if op_name(node) == "aten.matmul"]
    build = Builder(program.graph.output_node(), program)
    batch, heads, rows, columns = shape(matmul)
    sizes = [build.size(size) for size in (batch, heads * rows, columns)]
    view = build(torch.ops.aten.view.default, matmul, sizes)
    with pytest.raises(Refused) as reason:
        Lift(build, batch, heads).scores(view, frozenset({matmul, view}), (batch,))
    assert reason.value.why.startswith(f"its scores are reshaped by {view.name} from ")
    assert "keep scores as [batch, heads, queries, keys]" in reason.value.remedy


def test_a_bias_stays_small() -> None:
    """[B * H, 1, S] becomes [B, H, 1, S], not [B, H, S, S]; one for each head stays one for each head."""
    program = program_of(lambda x: (x.sum(-1).flatten(0, 1)[:, None], torch.ones(4, 1, 9).repeat(x.shape[0], 1, 1)))
    rows, tiled = program.graph.output_node().args[0]  # pyright: ignore[reportGeneralTypeIssues]
    assert isinstance(rows, fx.Node)
    batch = shape(program.graph.find_nodes(op="placeholder")[0])[0]
    lift = Lift(Builder(program.graph.output_node(), program), batch, sympy.Integer(4))
    assert [str(size) for size in shape(lift.scores(rows, frozenset(), shape(rows)[:-2]))][1:3] == ["4", "1"]
    assert [str(size) for size in shape(lift.scores(tiled, frozenset(), shape(tiled)[:-2]))] == ["1", "4", "1", "9"]


def test_grouped_keys_are_written_as_models_repeat_them() -> None:
    program = program_of(lambda x: x.view(x.shape[0], 4, 1, x.shape[2], 8))
    (view,) = program.graph.output_node().args[0]  # pyright: ignore[reportGeneralTypeIssues]
    assert isinstance(view, fx.Node)
    batch, *_ = shape(view)
    lift = Lift(Builder(program.graph.output_node(), program), batch, sympy.Integer(12))
    lift.operand(view, (batch, sympy.Integer(4), sympy.Integer(3)))
    made = listing(program)
    assert [op in made for op in ("aten.squeeze(view, 2)", "aten.unsqueeze(", "aten.expand(", "aten.reshape(")]
