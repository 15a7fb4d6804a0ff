"""The ring against torch's attention on one device: exact in fp64, no worse in 32 and 16 bits, in the right order."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sp.layout import LAYOUTS
from sp.mask import CAUSAL, FULL, Band
from sp.plan import count_steps, make_plan
from sp.runtime import circle
from sp.runtime.comm import Exchange
from sp.runtime.kernels import KERNELS
from sp.runtime.ring import RING
from sp.runtime.scores import BoundScore
from sp.runtime.stream import Saved
from sp.runtime.world import World, find_world
from sp.testing import run_ranks
from tests.runtime.attention_reference import (
    SCALE,
    gather,
    make_inputs,
    relative_errors,
    single,
    spread,
    spread_and_gather,
)

WORLDS = [1, 2, 3, 4, 8]
MASKS = [FULL, CAUSAL, Band(5, 0), Band(3, 7), Band(0, 0), Band(None, 4), Band(9, None)]


def sweep(world: int, layout: str, kernel: str, masks: list[Band], lengths: list[int]) -> dict[str, float]:
    """The largest relative error of output and gradients for every mask and length, and grouped heads of 4, 2 and 1."""
    cases = [(mask, length, (4, 2, 1)[length % 3]) for mask in masks for length in lengths]
    inputs = [make_inputs(length, groups=groups) for _, length, groups in cases]

    def rank(group: dist.ProcessGroup) -> list[list[Tensor]]:
        how = (layout, kernel, group.group_name, group.rank(), world)
        return [spread(x, mask, *how) for x, (mask, _, _) in zip(inputs, cases, strict=True)]

    errors: dict[str, float] = {}
    by_case = zip(*run_ranks(world, rank), strict=True)
    for parts, x, (mask, length, _) in zip(by_case, inputs, cases, strict=True):
        found = gather(list(parts), layout, length)
        errors[f"{mask} {length}"] = max(relative_errors(found, single(x, mask)))
    return errors


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("world", "kernel"), [*((n, "flash") for n in WORLDS), (1, "dense"), (3, "dense")])
def test_float64_is_exact(world: int, layout: str, kernel: str) -> None:
    """Lengths that divide the world and twice the world, and that don't; as few tokens as ranks."""
    errors = sweep(world, layout, kernel, MASKS, [world, 4 * world, 4 * world + 1, 2 * world + 7])
    assert max(errors.values()) < 1e-13, errors


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", [5, 6, 7, 9, 12, 16])
def test_float64_is_exact_everywhere(world: int, layout: str, kernel: str) -> None:
    masks = [*MASKS, *(Band(left, right) for left in (1, 13, None) for right in (0, 2, 11, None))]
    lengths = [world, world + 1, 2 * world - 1, 2 * world, 2 * world + 1, 5 * world + 3]
    errors = sweep(world, layout, kernel, masks, lengths)
    assert max(errors.values()) < 1e-13, errors


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_than_a_block_of_rows(layout: str) -> None:
    """Wide windows and tiles larger than the kernel's own, so that every shape of piece takes part."""
    length = 1100
    for mask in (CAUSAL, Band(520, 0), Band(40, 600)):
        inputs = make_inputs(length, heads=1, groups=1, size=4, batch=1)
        found = spread_and_gather(inputs, mask, layout, "flash", 2)
        assert max(relative_errors(found, single(inputs, mask))) < 1e-13, mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", [FULL, CAUSAL, Band(150, 0)], ids=str)
def test_low_precision_is_no_worse_than_one_device(mask: Band, layout: str, dtype: torch.dtype) -> None:
    """Against fp64, at most 1.5 times the error of torch's attention in the same dtype: output and each gradient."""
    inputs = make_inputs(320, heads=2, groups=1, size=32, batch=1, dtype=dtype)
    exact = single([x.double() for x in inputs], mask)
    alone = relative_errors(single(inputs, mask), exact)
    found = relative_errors(spread_and_gather(inputs, mask, layout, "flash", 8), exact)
    assert all(f <= 1.5 * a for f, a in zip(found, alone, strict=True)), (found, alone)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mask", [CAUSAL, Band(4, 0), Band(None, 2), Band(3, None)], ids=str)
@pytest.mark.parametrize(("size", "value_size"), [(8, 3), (3, 8)])
def test_values_of_another_size(size: int, value_size: int, mask: Band, kernel: str) -> None:
    """Keys and values still travel in one buffer, as they are."""
    q, k, v, grad = make_inputs(11)
    inputs = [q[..., :size], k[..., :size], v[..., :value_size], grad[..., :value_size]]
    found = spread_and_gather(inputs, mask, "striped", kernel, 3)
    assert max(relative_errors(found, single(inputs, mask))) < 1e-13


def test_what_is_filled_up_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    post = circle.post_exchange

    def recorded(world: World, send: Tensor, *rest: Any) -> Exchange:
        sent.append(send.numel())
        return post(world, send, *rest)

    monkeypatch.setattr(circle, "post_exchange", recorded)
    q, k, v, grad = make_inputs(12)
    spread_and_gather([q, k, v[..., :3], grad[..., :3]], CAUSAL, "striped", "flash", 2)
    assert set(sent) == {2 * 2 * 6 * (8 + 3)}  # batch × heads × tokens × sizes: keys and values, and their gradients


def test_count_steps() -> None:
    def steps(layout: str, mask: Band, world: int = 4) -> int:
        return count_steps(make_plan(layout, mask, 16, world, 0))

    assert [steps(layout, mask) for layout in LAYOUTS for mask in (FULL, CAUSAL)] == [4] * 6
    assert [steps("contiguous", Band(left, 0)) for left in (0, 1, 4, 5, 9)] == [1, 2, 2, 3, 4]
    assert steps("contiguous", CAUSAL, world=1) == 1
    assert steps("contiguous", Band(-99, 99)) == 1  # nobody sees anything


def test_a_mask_that_shows_nothing_gives_zeros() -> None:
    def rank(group: dist.ProcessGroup) -> list[Tensor]:
        world = find_world(group.group_name)
        q, k, v, grad = make_inputs(4)
        plan = make_plan("striped", Band(-99, 99), 8, world.size, world.rank)
        out, lse = RING.forward(q, k, v, plan, KERNELS["flash"], SCALE, world, None)
        assert (lse == -torch.inf).all()
        *gradients, _ = RING.backward(grad, Saved(q, k, v, out, lse), plan, KERNELS["flash"], SCALE, world, None)
        return [out, *gradients]

    for found in run_ranks(2, rank):
        assert all((x == 0).all() for x in found)


class LargestTensor(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            self.numel = max(self.numel, x.numel() if isinstance(x, Tensor) else 0)
        return result


@pytest.mark.parametrize("mask", [FULL, CAUSAL, Band(100, 0), Band(700, 30)], ids=str)
def test_no_tensor_is_tokens_by_tokens(mask: Band) -> None:
    """Nothing grows with the square of the tokens: narrow windows need heads × rows of a block × their width."""
    length, heads = 4096, 2

    def rank(group: dist.ProcessGroup) -> int:
        world = find_world(group.group_name)
        plan = make_plan("contiguous", mask, length, world.size, world.rank)
        q, k, v, grad = make_inputs(length // world.size, heads=heads, batch=1, dtype=torch.float32)
        with LargestTensor() as largest:
            out, lse = RING.forward(q, k, v, plan, KERNELS["flash"], SCALE, world, None)
            RING.backward(grad, Saved(q, k, v, out, lse), plan, KERNELS["flash"], SCALE, world, None)
        return largest.numel

    local = length // 2
    assert max(run_ranks(2, rank)) <= heads * local * 128 < heads * local * local / 8


@pytest.mark.parametrize("text", ["a = eq.Tensor(l0, l1) -> visible=a", "t = tanh.default(s) -> score=t"])
def test_no_score_is_tokens_by_tokens(text: str) -> None:
    """Documents and functions of scores too: what a kernel evaluates at once has a size of its own."""
    length, heads = 6144, 2

    def rank(group: dist.ProcessGroup) -> int:
        world = find_world(group.group_name)
        plan = make_plan("striped", CAUSAL, length, world.size, world.rank)
        q, k, v, grad = make_inputs(length // world.size, heads=heads, batch=1, dtype=torch.float32)
        ids = torch.arange(length) // 1500
        leaves = [ids.view(1, 1, -1, 1), ids.view(1, 1, 1, -1)]
        score = BoundScore.bind(f"l0:q l1:k; {text}", leaves, plan, q.device)
        with LargestTensor() as largest:
            out, lse = RING.forward(q, k, v, plan, KERNELS["flash"], SCALE, world, score)
            RING.backward(grad, Saved(q, k, v, out, lse), plan, KERNELS["flash"], SCALE, world, score)
        return largest.numel

    local = length // 2
    assert max(run_ranks(2, rank)) <= heads * 256 * 2048 < heads * local * local / 8
