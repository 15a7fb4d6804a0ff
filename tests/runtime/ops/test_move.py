"""sp::move against plain slicing of the whole value, for every layout, and its gradient."""

from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sp.crossing import Part, count_rows, crossings
from sp.layout import LAYOUTS
from sp.runtime.ops import move, shard, unshard
from sp.testing import run_ranks

Span = tuple[int, int, int]  # start, length, total
OLD: list[Span] = [(0, 11, 11), (0, 10, 11), (1, 10, 11), (3, 5, 11), (10, 1, 11)]
NEW: list[Span] = [(0, 11, 11), (0, 10, 10), (0, 14, 14), (2, 9, 17), (0, 4, 11)]


def moved(whole: Tensor, length: int, shift: int, fill: float = 0.0) -> Tensor:
    """The definition: element i of dim 1 becomes element i + shift of `length`."""
    size = whole.shape[1]
    begin, stop = max(0, -shift), min(size, length - shift)
    if stop <= begin:
        return torch.full((whole.shape[0], length, *whole.shape[2:]), fill, dtype=whole.dtype)
    return F.pad(whole[:, begin:stop], (0, 0) * (whole.dim() - 2) + (begin + shift, length - stop - shift), value=fill)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("layout", [*LAYOUTS, "striped:2"])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 11])
def test_move_is_a_shift_of_the_whole(world: int, layout: str) -> None:
    def check(group: dist.ProcessGroup) -> None:
        name = group.group_name if world > 1 else ""
        for old, new, shift in product(OLD, NEW, (0, 1, 3, -2)):
            whole = numbers(2, old[1], 3)
            part = shard(whole, 1, 1, *old, layout, name)
            found = move(part, 1, 1, *old, *new, shift, 0.5, layout, name)
            assert torch.equal(found, shard(moved(whole, new[1], shift, 0.5), 1, 1, *new, layout, name)), (old, new)

    run_ranks(world, check)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_merged_dims_and_dtypes(layout: str) -> None:
    """Elements merged before and behind the sequence move with it; bits stay what they are."""
    outer, inner = 2, 3

    def check(group: dist.ProcessGroup) -> None:
        for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool):
            whole = (10 * numbers(outer, 11, inner)).to(dtype)
            tail = (layout, group.group_name, inner)
            part = shard(whole.flatten(), 0, outer, 0, 11, 11, *tail)
            found = move(part, 0, outer, 0, 11, 11, 0, 13, 13, 2, 0.0, *tail)
            assert found.dtype == dtype
            assert torch.equal(unshard(found, 0, outer, 0, 13, 13, *tail), moved(whole, 13, 2).flatten())

    run_ranks(3, check)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_move_back(layout: str) -> None:
    x, weight = numbers(2, 11, 3), numbers(2, 13, 3) + 1
    single = x.clone().requires_grad_()
    (moved(single.sin(), 13, 1, 7.0).exp() * weight).sum().backward()

    def check(group: dist.ProcessGroup) -> Tensor:
        tail = (layout, group.group_name)
        leaf = x.clone().requires_grad_()
        part = move(shard(leaf, 1, 1, 0, 11, 11, *tail).sin(), 1, 1, 0, 11, 11, 0, 13, 13, 1, 7.0, *tail)
        (unshard(part.exp(), 1, 1, 0, 13, 13, *tail) * weight).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    for gradient in run_ranks(3, check):
        torch.testing.assert_close(gradient, single.grad, rtol=1e-13, atol=1e-13)


def test_opcheck() -> None:
    def check(*arguments: Any) -> None:
        utils = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(move, arguments, test_utils=utils)

    x = numbers(2, 11, 3).requires_grad_()
    check(x, 1, 1, 0, 11, 11, 0, 13, 13, 1, 0.0, "striped", "")
    check(x.detach().flatten(), 0, 2, 0, 11, 11, 0, 10, 10, 0, 0.0, "zigzag", "", 3)


def test_contiguous_shards_exchange_no_more_than_a_halo() -> None:
    """One more token in front: for contiguous shards of 64 tokens, few of them leave their rank."""

    def travelling(layout: str) -> int:
        old, new = Part(layout, 0, 256, 256), Part(layout, 0, 257, 257)
        pairs = [(a, b) for a, b in product(range(4), range(4)) if a != b]
        return sum(count_rows(rows) for a, b in pairs for rows, _ in crossings(old, new, 1, 4, a, b))

    assert travelling("contiguous") <= 4
    assert travelling("zigzag") <= 8
    assert travelling("striped") == 256
