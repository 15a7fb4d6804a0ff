"""What counts as differentiable."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from sp.passes import preparation, rewriting
from sp.passes.decompose import Decompose
from sp.passes.fxtools import is_parameter, op_name
from sp.passes.placements import carries_gradients, is_differentiable
from tests.passes.programs import program_of


def differentiable(forward: Callable[..., Tensor]) -> dict[str, bool]:
    """Of each op of `forward`, whether a gradient flows through it to a parameter."""
    known, found = set[fx.Node](), dict[str, bool]()
    for node in program_of(forward, passes=(*preparation(), *rewriting(), Decompose())).graph.nodes:
        if is_parameter(node):
            known.add(node)
        elif node.op == "call_function":
            found[op_name(node)] = is_differentiable(node, known)
            known |= {node} if found[op_name(node)] else set()
    return found


def test_gradients_flow_through_ops_of_floats() -> None:
    """`is`, since it is a bool that is promised."""
    found = differentiable(lambda m, ids: m.l(m.e(ids + 1)))
    assert found["aten.linear"] is True
    assert found["aten.embedding"] is True, "one of two operands is enough"
    assert found["aten.add"] is False, "whole numbers"


@pytest.mark.parametrize(
    ("op", "forward"),
    [
        ("aten.detach", lambda m, ids: m.l(m.e(ids).detach())),
        ("sp.peak", lambda m, ids: torch.logsumexp(m.e(ids), 1)),
        ("sp.noise", lambda m, ids: nn.functional.dropout(m.e(ids), 0.5)),
        ("aten.new_ones", lambda m, ids: m.e(ids).new_ones(4) + m.e(ids)),
        ("aten.new_full", lambda m, ids: m.e(ids).new_full((4,), 2.0) + m.e(ids)),
        ("aten.argmax", lambda m, ids: m.e(ids).argmax(-1)),
        ("aten.sym_size", lambda m, ids: m.e(ids) / m.e(ids).shape[1]),
    ],
)
def test_gradients_end_at_constants(op: str, forward: Callable[..., Tensor]) -> None:
    found = differentiable(forward)
    assert found["aten.embedding"] is True
    assert found[op] is False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_floats_and_complex_numbers_carry_gradients(dtype: torch.dtype) -> None:
    assert carries_gradients(torch.zeros(1, dtype=dtype)) is True


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_no_others_do(dtype: torch.dtype) -> None:
    assert carries_gradients(torch.zeros(1, dtype=dtype)) is False
