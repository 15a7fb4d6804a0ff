"""Transports: how keys and values reach the queries, or the queries' results each other.  A line in a table each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sp.errors import StrategyError
from sp.mask import Band
from sp.plan import Plan, make_local_plan, make_plan
from sp.runtime.allgather import ALL_GATHER
from sp.runtime.comm import World
from sp.runtime.double_ring import DOUBLE_RING
from sp.runtime.kernels import Kernel
from sp.runtime.partials import partials_forward
from sp.runtime.ring import RING, ring_backward, ring_forward
from sp.runtime.scores import BoundScore
from sp.runtime.stream import Saved
from sp.runtime.ulysses import ulysses_backward, ulysses_forward

Forward = Callable[[Tensor, Tensor, Tensor, Plan, Kernel, float, World, BoundScore | None], tuple[Tensor, Tensor]]
Backward = Callable[
    [Tensor, Saved, Plan, Kernel, float, World, BoundScore | None], tuple[Tensor, Tensor, Tensor, list[Tensor]]
]


@dataclass(frozen=True)
class Transport:
    """plan(layout, mask, length, world, keys): what this rank of a world computes.
    forward(q, k, v, plan, kernel, scale, world, score): out, lse.
    backward(grad_out, saved, plan, …): dq, dk, dv, and the gradients of the score's leaves; in the dtype of sums, or
    already in those of q, k and v.  No two share a buffer.

    All tensors but leaves are local; out, dq, dk, dv are laid out [B, S, heads, size]."""

    name: str
    plan: Callable[[str, Band, int, World, int], Plan]
    forward: Forward
    backward: Backward


def _plan(layout: str, mask: Band, length: int, world: World, keys: int) -> Plan:
    return make_plan(layout, mask, length, world.size, world.rank, keys)


def _plan_of_rings(layout: str, mask: Band, length: int, world: World, keys: int) -> Plan:
    return make_plan(layout, mask, length, world.size, world.rank, keys, world.inner.size)


def _local_plan(layout: str, mask: Band, length: int, world: World, keys: int) -> Plan:
    return make_local_plan(layout, mask, length, world.size, world.rank, keys)


TRANSPORTS = {
    transport.name: transport
    for transport in (
        Transport("ring", _plan, ring_forward, ring_backward),
        Transport("double_ring", _plan_of_rings, DOUBLE_RING.forward, DOUBLE_RING.backward),
        Transport("allgather", _plan, ALL_GATHER.forward, ALL_GATHER.backward),
        Transport("alltoall", _plan, ulysses_forward, ulysses_backward),
        # Of one step, so that the ring's backward sends nothing.  No strategy's own: for queries without a sequence.
        Transport("merge", _local_plan, partials_forward, RING.backward),
    )
}


def find_transport(name: str) -> Transport:
    """The transport called `name`; StrategyError lists the known ones."""
    if name not in TRANSPORTS:
        known = ", ".join(sorted(TRANSPORTS))
        raise StrategyError(f"there is no transport {name!r}", needed=f"one of: {known}")
    return TRANSPORTS[name]
