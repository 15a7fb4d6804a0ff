"""sp::redistribute against the shards of the whole, for every pair of layouts, its gradient, and what it sends."""

import sys
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from sp.layout import LAYOUTS
from sp.runtime.ops import redistribute, shard, unshard
from sp.testing import run_ranks

UTILS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_it_is_the_shard_of_the_other_layout(world: int) -> None:
    names = [*LAYOUTS, "striped:2", *(["striped/2"] if world % 2 == 0 else [])]

    def check(group: dist.ProcessGroup) -> None:
        for old, new, (start, length, total) in product(names, names, [(0, 11, 11), (1, 9, 11), (10, 1, 11)]):
            whole, tail = numbers(2, 2 * length * 3, 2), (group.group_name, 3)
            part = shard(whole, 1, 2, start, length, total, old, *tail)
            found = redistribute(part, 1, 2, start, length, total, old, new, *tail)
            assert torch.equal(found, shard(whole, 1, 2, start, length, total, new, *tail)), (old, new)

    run_ranks(world, check)


def test_every_dtype_and_stride() -> None:
    def check(group: dist.ProcessGroup) -> None:
        for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn):
            whole = (10 * numbers(11, 2)).to(dtype)
            part = shard(whole, 0, 1, 0, 11, 11, "contiguous", group.group_name)
            strided = part.t().contiguous().t()
            found = redistribute(strided, 0, 1, 0, 11, 11, "contiguous", "striped", group.group_name)
            assert found.is_contiguous()
            expected = shard(whole, 0, 1, 0, 11, 11, "striped", group.group_name)
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))

    run_ranks(3, check)


def test_nothing_to_send() -> None:
    """An empty batch; and a rank that holds nothing, which gets its tokens all the same."""

    def check(group: dist.ProcessGroup) -> None:
        empty = torch.zeros(group.rank() + 1, 0)
        assert redistribute(empty, 0, 1, 0, 6, 6, "contiguous:1,2,3", "striped", group.group_name).shape == (2, 0)
        whole = numbers(7, 2)
        mine = whole[[slice(0, 0), slice(0, 5), slice(5, 7)][group.rank()]]
        found = redistribute(mine, 0, 1, 0, 7, 7, "contiguous:0,5,2", "zigzag", group.group_name)
        assert torch.equal(found, shard(whole, 0, 1, 0, 7, 7, "zigzag", group.group_name))

    run_ranks(3, check)


@pytest.mark.parametrize(("old", "new"), [("contiguous", "striped"), ("zigzag", "contiguous:0,9,2")])
def test_gradients_go_back(old: str, new: str) -> None:
    """Through a second derivative too."""
    x, weight = numbers(2, 11, 3), numbers(2, 11, 3, seed=1)

    def penalized(loss: Tensor, leaf: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
        return loss + gradient.square().sum()

    single = x.clone().requires_grad_()
    penalized((single.sin().exp() * weight).square().sum(), single).backward()

    def check(group: dist.ProcessGroup) -> Tensor:
        name = group.group_name
        leaf = x.clone().requires_grad_()
        part = shard(leaf, 1, 1, 0, 11, 11, old, name).sin()
        there = redistribute(part, 1, 1, 0, 11, 11, old, new, name).exp()
        penalized((unshard(there, 1, 1, 0, 11, 11, new, name) * weight).square().sum(), leaf).backward()
        assert leaf.grad is not None
        return leaf.grad

    for gradient in run_ranks(3, check):
        torch.testing.assert_close(gradient, single.grad, rtol=1e-13, atol=1e-13)


def test_opcheck() -> None:
    def check(*arguments: Any) -> None:
        torch.library.opcheck(redistribute, arguments, test_utils=UTILS)

    x = numbers(2, 11, 3).requires_grad_()
    check(x, 1, 1, 0, 11, 11, "contiguous", "striped", "")
    check(x.detach().flatten(), 0, 2, 0, 11, 11, "zigzag", "contiguous", "", 3)


def test_a_rank_sends_what_others_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes counted where they leave: from contiguous to striped in a world of four, three quarters of a part."""
    module: Any = sys.modules["sp.runtime.ops.redistribute"]  # an attribute of that name is the op
    sent: list[int] = []
    plain = module.all_to_all

    def counted(world: Any, send: Tensor, *rest: Any) -> Tensor:
        sent.append(send.numel())
        return plain(world, send, *rest)

    monkeypatch.setattr(module, "all_to_all", counted)

    def check(group: dist.ProcessGroup) -> None:
        redistribute(numbers(4, 5), 0, 1, 0, 16, 16, "contiguous", "striped", group.group_name)
        redistribute(numbers(4, 5), 0, 1, 0, 16, 16, "striped", "striped", group.group_name)

    run_ranks(4, check)
    assert sent == [15] * 4
