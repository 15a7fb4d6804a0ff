"""Checksums differ where contents do, and nowhere else."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sp.runtime.checksums import sums

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64]
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "negated": lambda x: -x,
    "two signs": lambda x: torch.cat([-x[:1], x[1:2], -x[2:3], x[3:]]),
    "two swapped": lambda x: x[[3, 1, 2, 0, *range(4, len(x))]],
    "reversed": lambda x: x.flip(0),
    "one doubled": lambda x: torch.cat([x[:5], x[5:6] * 2, x[6:]]),
    "one of two zeros": lambda x: torch.cat([x[:6], x[6:7] * 0, x[7:]]),
    "rolled": lambda x: x.roll(1),
    "shorter": lambda x: x[:-1],
}


def drawn(dtype: torch.dtype, count: int = 1000) -> Tensor:
    made = torch.randn(count, generator=torch.Generator().manual_seed(0))
    return made.to(torch.float32).to(dtype)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_differs(dtype: torch.dtype, change: str) -> None:
    x = drawn(torch.float32 if dtype == torch.float8_e4m3fn else dtype)
    assert sums(x.to(dtype)) != sums(CHANGES[change](x).to(dtype))


def test_where_it_lies_is_no_matter() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool):
        x = torch.arange(4002).to(dtype)
        same = sums(x[1:3001])
        assert same == sums(x[1:3001].clone())
        assert same == sums(torch.stack([x, x], 1)[1:3001, 0])


def test_lazy_signs_and_many_chunks() -> None:
    x = torch.complex(drawn(torch.float64), drawn(torch.float64))
    assert sums(x.conj()) == sums(x.conj().resolve_conj())
    assert sums(x.conj().imag) == sums(-x.imag)
    many = torch.arange(3 << 20)
    assert sums(many) != sums(many.roll(1 << 20))
    assert sums(torch.zeros(0)) == (0, 0)
    assert sums(torch.tensor(3.0)) == sums(torch.tensor([3.0]))
