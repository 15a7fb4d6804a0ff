"""Queries that travel, against torch's attention on one device and against where keys travel."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from sp.layout import LAYOUTS
from sp.mask import CAUSAL, FULL, Band
from sp.plan import make_plan
from sp.runtime.kernels import KERNELS
from sp.runtime.ring import RING
from sp.runtime.scores import BoundScore
from sp.runtime.stream import Saved
from sp.runtime.visits import visits_backward, visits_forward
from sp.runtime.world import World, find_world
from sp.testing import run_ranks
from tests.runtime.attention_reference import SCALE, gather, make_inputs, relative_errors, visible
from tests.runtime.recorder import Recorder

MASKS = [FULL, CAUSAL, Band(5, 0), Band(3, 7), Band(0, 0), Band(None, 4), Band(9, None)]
WAYS = {True: (visits_forward, visits_backward), False: (RING.forward, RING.backward)}


def cross_inputs(length: int, keys: int, **how: Any) -> list[Tensor]:
    q, _, _, grad = make_inputs(length, **how)
    _, k, v, _ = make_inputs(keys, **how)
    return [q, k, v, grad]


def single(inputs: list[Tensor], mask: Band) -> list[Tensor]:
    """out, dq, dk, dv, written out in fp64; rows that see nothing get zeros."""
    *qkv, grad = inputs
    q, k, v = (x.double().detach().clone().requires_grad_() for x in qkv)
    each = q.shape[1] // k.shape[1]
    scores = SCALE * q @ k.repeat_interleave(each, 1).mT
    hidden = ~visible(mask, max(q.shape[2], k.shape[2]))[: q.shape[2], : k.shape[2]]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden.all(-1, keepdim=True), 0)
    out = weights.nan_to_num(0) @ v.repeat_interleave(each, 1)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad.double())]


def spread(inputs: list[Tensor], mask: Band, layout: str, world: World, way: bool, score: str = "") -> list[Tensor]:
    """out, dq, dk, dv of one rank."""
    length, keys = inputs[0].shape[2], inputs[1].shape[2]
    plan = make_plan(layout, mask, length, world.size, world.rank, keys)
    totals = (length, keys, keys, length)
    held = [torch.tensor(LAYOUTS[layout].positions(n, world.rank, world.size), dtype=torch.long) for n in totals]
    q, k, v, grad = (x.transpose(1, 2)[:, here].transpose(1, 2) for x, here in zip(inputs, held, strict=True))
    bound = BoundScore.bind(score, documents(length, keys), plan, q.device) if score else None
    forward, backward = WAYS[way]
    out, lse = forward(q, k, v, plan, KERNELS["flash"], SCALE, world, bound)
    memories = {x.untyped_storage().data_ptr() for x in (out, lse)} - {0}
    assert len(memories) == 2 or not out.numel(), "one memory for both"
    return [out, *backward(grad, Saved(q, k, v, out, lse), plan, KERNELS["flash"], SCALE, world, bound)[:3]]


def documents(length: int, keys: int) -> list[Tensor]:
    return [(torch.arange(length) // 3).view(1, 1, -1, 1), (torch.arange(keys) // 3).view(1, 1, 1, -1)]


def gathered(parts: list[list[Tensor]], layout: str, length: int, keys: int) -> list[Tensor]:
    of_queries, of_keys = [x[:2] for x in parts], [x[2:] for x in parts]
    return [*gather(of_queries, layout, length), *gather(of_keys, layout, keys)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_float64_is_exact(world: int, layout: str) -> None:
    """Both directions; uneven lengths, fewer queries than ranks; grouped heads; causal and windows too."""
    shapes = [(world, 4 * world + 1), (2 * world + 1, 5 * world + 2), (1, 3 * world), (4 * world + 3, 4 * world + 3)]
    cases = [(mask, shapes[n % 4], (4, 2, 1)[n % 3]) for n, mask in enumerate(MASKS * 2)]
    inputs = [cross_inputs(*shape, groups=groups) for _, shape, groups in cases]

    def rank(group: dist.ProcessGroup) -> list[list[Tensor]]:
        here = find_world(group.group_name)
        return [spread(x, mask, layout, here, True) for x, (mask, _, _) in zip(inputs, cases, strict=True)]

    for parts, x, (mask, shape, _) in zip(zip(*run_ranks(world, rank), strict=True), inputs, cases, strict=True):
        errors = relative_errors(gathered(list(parts), layout, *shape), single(x, mask))
        assert max(errors) < 1e-13, (mask, shape, errors)


@pytest.mark.parametrize("world", [2, 3])
def test_scores_travel_with_their_queries(world: int) -> None:
    """Documents: what a query sees depends on where it comes from."""
    text = "l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a"
    inputs = cross_inputs(7, 7)

    def rank(group: dist.ProcessGroup) -> list[list[Tensor]]:
        return [spread(inputs, CAUSAL, "striped", find_world(group.group_name), way, text) for way in (True, False)]

    for queries, keys in run_ranks(world, rank):
        assert max(relative_errors(queries, keys)) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_no_worse_than_where_keys_travel(dtype: torch.dtype) -> None:
    inputs = cross_inputs(40, 320, heads=2, groups=1, size=32, batch=1, dtype=dtype)
    exact = single(inputs, FULL)

    def rank(group: dist.ProcessGroup) -> list[list[Tensor]]:
        return [spread(inputs, FULL, "striped", find_world(group.group_name), way) for way in (True, False)]

    by_way = zip(*run_ranks(4, rank), strict=True)
    queries, keys = (relative_errors(gathered(list(parts), "striped", 40, 320), exact) for parts in by_way)
    assert all(q <= 1.2 * k for q, k in zip(queries, keys, strict=True)), (queries, keys)


def test_order_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries go the other way about.  Results of a step are posted before the next is computed, the last hop before
    half of the own queries are."""
    visitors, own, work, arrived = "post visitors to +3", "compute own", "compute", "wait visitors"
    results, returned = "post results to +3", "wait results"
    for phases in Recorder(monkeypatch).run("ring", 4, "striped", FULL, 16, keys=400):
        for events in phases:
            first = [visitors, own, arrived, visitors, work, results, arrived]
            rest = [visitors, work, returned, results, arrived, work, returned, results]
            assert [event for event in events if event != "add"] == [*first, *rest, own, returned]
