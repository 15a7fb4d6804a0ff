"""Synonyms become the common op, and stay what they say."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sp.passes.normalize import Normalize
from sp.passes.synonyms import SYNONYMS
from tests.passes.programs import Small, ops, program_of

X_BSD = torch.rand(2, 9, 4)

# Op, what it becomes and what it needs (after x * 2; what only told a size is gone), a call of it.
CALLS: list[tuple[str, str, Callable[[Tensor], Any]]] = [
    ("unflatten", "view", lambda x: x.unflatten(2, (2, -1))),
    ("view_as", "view", lambda x: x.view_as(x.sin())),
    ("reshape_as", "flatten reshape", lambda x: x.flatten().reshape_as(x)),
    ("ravel", "reshape", lambda x: x.ravel()),
    ("expand_as", "unsqueeze expand", lambda x: x[:, None].expand_as(x.new_ones(2, 3, *x.shape[1:]))),
    ("broadcast_to", "expand", lambda x: x.broadcast_to(3, *x.shape)),
    ("movedim", "permute", lambda x: x.movedim(0, -1)),
    ("moveaxis", "permute", lambda x: x.moveaxis((2, 0), (0, 1))),
    ("numpy_T", "permute", lambda x: x.T),
    ("narrow", "slice", lambda x: x.narrow(1, 2, 3)),
    ("narrow", "slice", lambda x: x.narrow(1, -2, 2)),
    ("narrow", "slice", lambda x: x.narrow(1, 1, x.shape[1] - 2)),
    ("type_as", "to", lambda x: x.type_as(torch.arange(2))),
    ("concat", "sin cat", lambda x: torch.concat([x, x.sin()], -1)),
    ("concatenate", "sin cat", lambda x: torch.concatenate([x, x.sin()], 1)),
    ("cat", "alias", lambda x: torch.cat([x.new_zeros(0), x], 1)),
    ("hstack", "sin cat", lambda x: torch.hstack([x, x.sin()])),
    ("hstack", "flatten flatten cat", lambda x: torch.hstack([x.flatten(), x.flatten()])),
    ("vstack", "sin cat", lambda x: torch.vstack([x, x.sin()])),
    ("row_stack", "sin cat", lambda x: torch.row_stack([x, x.sin()])),
    ("column_stack", "sin cat", lambda x: torch.column_stack([x, x.sin()])),
    ("dstack", "sin cat", lambda x: torch.dstack([x, x.sin()])),
    ("hsplit", "unsqueeze expand tensor_split", lambda x: x[:, None].expand(-1, 4, -1, -1).hsplit(2)[1]),
    ("hsplit", "new_ones tensor_split", lambda x: x.new_ones(4).hsplit((1, 3))[1]),
    ("vsplit", "unsqueeze expand tensor_split", lambda x: x[None].expand(4, -1, -1, -1).vsplit([3])[0]),
    ("dsplit", "tensor_split", lambda x: x.dsplit(2)[1]),
    ("fliplr", "flip", lambda x: x.fliplr()),
    ("flipud", "flip", lambda x: x.flipud()),
    ("special_softmax", "softmax", lambda x: torch.special.softmax(x, -1, dtype=torch.float32)),
    ("special_log_softmax", "log_softmax", lambda x: torch.special.log_softmax(x, -1, dtype=torch.float32)),
    ("linalg_matmul", "mT matmul", lambda x: torch.linalg.matmul(x, x.mT)),
]
# What does not fit stays as it is.
LEFT: list[tuple[str, Callable[[Tensor], Any]]] = [
    ("cat", lambda x: torch.cat([x, x], 1)),
    ("cat", lambda x: torch.cat([x.new_zeros(0, dtype=torch.float64), x], 1)),  # which makes it float64
    ("vstack", lambda x: torch.vstack([x.flatten(), x.flatten()])),
    ("dstack", lambda x: torch.dstack([x[0], x[0]])),
    ("column_stack", lambda x: torch.column_stack([x.flatten(), x.flatten()])),
    ("type_as", lambda x: x.type_as(torch.ones(2, device="meta"))),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_synonym(number: int) -> None:
    name, expected, call = CALLS[number]
    model = Small(lambda m, x: call(x * 2))
    before = program_of(model, X_BSD)
    assert f"aten.{name}" in ops(before)
    program = Normalize().run(before)
    assert f"aten.{name}" not in ops(program)
    found = [op.removeprefix("aten.") for op in ops(program) if op.startswith("aten.") and op != "aten.sym_size"]
    assert found == ["mul", *expected.split()], found
    x = torch.rand(2, 7, 4)
    torch.testing.assert_close(program.graph_module(x)[0], model(x), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("number", range(len(LEFT)))
def test_what_does_not_fit_is_left(number: int) -> None:
    name, call = LEFT[number]
    assert f"aten.{name}" in ops(program_of(lambda m, x: call(x * 2), X_BSD, passes=[Normalize()]))


def test_empty_parts_are_left_out() -> None:
    program = program_of(lambda m, x: torch.cat([x.new_zeros(0), x, x.sin()], 1), X_BSD, passes=[Normalize()])
    (cat,) = [node for node in program.graph.nodes if node.target is torch.ops.aten.cat.default]
    assert len(cat.args[0]) == 2


def test_every_synonym_is_called() -> None:
    assert {f"aten.{name}" for name, _, _ in CALLS} == set(SYNONYMS)
