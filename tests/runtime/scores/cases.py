"""Scores with their leaves, and beside each what it adds to the scores, written out in plain torch without any of sp.

B batch · H heads · S queries · T keys, all global
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

INF = float("inf")


@dataclass(frozen=True)
class Case:
    """text: of the score.  leaves(length, keys).  added(leaves, i_S1, j_T): [B|1, H|1, S, T] in float64."""

    name: str
    text: str
    leaves: Callable[[int, int], list[Tensor]]
    added: Callable[[list[Tensor], Tensor, Tensor], Tensor]

    def dense(self, leaves: list[Tensor], length: int, keys: int) -> Tensor:
        i_S1, j_T = torch.arange(length).unsqueeze(1), torch.arange(keys)
        added = self.added(leaves, i_S1, j_T).double()
        return added.expand(*added.shape[:-2], length, keys).reshape(
            (1,) * (4 - added.dim()) + (*added.shape[:-2], length, keys)
        )


def hide(visible: Tensor, value: float = -INF) -> Tensor:
    return torch.zeros_like(visible, dtype=torch.float64).masked_fill(~visible, value)


def documents(total: int, batch: int = 1) -> Tensor:
    """Document numbers that ascend, with documents of 1, 7 and 12 tokens in turn."""
    lengths = torch.tensor([7, 1, 12, 12, 3])
    numbers = torch.arange(5).repeat_interleave(lengths).repeat(total // 35 + 2)
    numbers = numbers + 5 * (torch.arange(len(numbers)) // 35)
    return torch.stack([numbers[5 * b : total + 5 * b] for b in range(batch)])


def _query_and_key(length: int, keys: int, batch: int = 1) -> list[Tensor]:
    return [documents(length, batch).view(batch, 1, -1, 1), documents(keys, batch).view(batch, 1, 1, -1)]


def _padding(length: int, keys: int) -> list[Tensor]:
    """True where there is a token: batch elements with padding left, right, none."""
    j = torch.arange(keys)
    return [torch.stack([j >= keys // 3, j < keys - keys // 4, j >= 0]).view(3, 1, 1, -1)]


def _float_mask(value: float, dtype: torch.dtype) -> Callable[[int, int], list[Tensor]]:
    def leaves(length: int, keys: int) -> list[Tensor]:
        seen = documents(length).view(-1, 1) // 2 == documents(keys) // 2
        return [hide(seen, value).to(dtype).view(1, 1, length, keys)]

    return leaves


def _slopes(length: int, keys: int) -> list[Tensor]:
    return [torch.tensor([0.5, 0.25, 1e4]).view(1, 3, 1, 1)]


def _table(length: int, keys: int) -> list[Tensor]:
    return [torch.linspace(-2, 2, 24).view(8, 3)]


def _numbers(length: int, keys: int) -> list[Tensor]:
    return [*_padding(length, keys), *_query_and_key(length, keys), torch.tensor(0.0), torch.tensor(-INF)]


F32_MIN, F16_MIN = torch.finfo(torch.float32).min, torch.finfo(torch.float16).min
CASES = [
    Case(
        "documents",
        "l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a",
        _query_and_key,
        lambda x, i, j: hide(x[0] == x[1]),
    ),
    Case(
        "documents of each batch element",
        "l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a",
        lambda length, keys: _query_and_key(length, keys, 2),
        lambda x, i, j: hide(x[0] == x[1]),
    ),
    Case("padding", "l0:k -> visible=l0", _padding, lambda x, i, j: hide(x[0])),
    Case(
        "padding by finfo.min",
        "l0:k; a = _to_copy.default(l0, dtype='float32'); b = rsub.Scalar(a, 1.0);"
        " c = mul.Tensor(b, -3.4028234663852886e+38) -> bias=c",
        _padding,
        lambda x, i, j: hide(x[0], F32_MIN),
    ),
    Case(
        "window",
        "a = sub.Tensor(i, j); b = abs.default(a); c = le.Scalar(b, 9) -> visible=c",
        lambda length, keys: [],
        lambda x, i, j: hide((i - j).abs() <= 9),
    ),
    Case(
        "chunks",
        "a = div.Tensor_mode(i, 16, rounding_mode='floor'); b = floor_divide.Scalar(j, 16); c = eq.Tensor(a, b)"
        " -> visible=c",
        lambda length, keys: [],
        lambda x, i, j: hide(i // 16 == j // 16),
    ),
    Case(
        "prefix",
        "l0:; a = lt.Tensor(j, l0); b = le.Tensor(j, i); c = bitwise_or.Tensor(a, b) -> visible=c",
        lambda length, keys: [torch.tensor([keys // 3, keys // 5]).view(2, 1, 1, 1)],
        lambda x, i, j: hide((j < x[0]) | (j <= i)),
    ),
    Case("-inf mask", "l0:qk -> bias=l0", _float_mask(-INF, torch.float32), lambda x, i, j: x[0]),
    Case("finfo.min mask", "l0:qk -> bias=l0", _float_mask(F32_MIN, torch.float32), lambda x, i, j: x[0]),
    Case("finfo.min mask in 16 bits", "l0:qk -> bias=l0", _float_mask(F16_MIN, torch.float16), lambda x, i, j: x[0]),
    Case(
        "ALiBi",
        "l0:; a = sub.Tensor(j, i); b = mul.Tensor(l0, a) -> bias=b",
        _slopes,
        lambda x, i, j: x[0] * (j - i),
    ),
    Case(
        "T5",
        "l0:table+grad; a = sub.Tensor(i, j); b = clamp.default(a, 0, 7); c = lookup(l0, b) -> bias=c",
        _table,
        lambda x, i, j: x[0][(i - j).clamp(0, 7)].permute(2, 0, 1),
    ),
    Case(
        "mixture",
        "l0:k l1:q l2:k l3: l4:; a = eq.Tensor(l1, l2); b = logical_and.default(a, l0); c = sub.Tensor(i, j);"
        " d = gt.Scalar(c, 20); e = bitwise_not.default(d); f = bitwise_and.Tensor(b, e); g = where.self(f, l3, l4)"
        " -> bias=g, visible=e",
        _numbers,
        lambda x, i, j: hide((x[1] == x[2]) & x[0] & (i - j <= 20)),
    ),
]
