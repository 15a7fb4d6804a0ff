"""Transports: how keys and values reach the queries, or the queries' results each other.  A line in a table each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sp.errors import StrategyError
from sp.mask import Band
from sp.plan import Plan, make_local_plan, make_plan
from sp.runtime.allgather import ALL_GATHER
from sp.runtime.double_ring import DOUBLE_RING
from sp.runtime.kernels import Kernel
from sp.runtime.merge import accumulation_dtype
from sp.runtime.partials import partials_forward
from sp.runtime.ring import RING, ring_backward, ring_forward
from sp.runtime.scores import BoundScore
from sp.runtime.stream import Saved
from sp.runtime.ulysses import dealt_like, ulysses_backward, ulysses_forward
from sp.runtime.world import World

_LocalForward = Callable[[Tensor, Tensor, Tensor, Plan, Kernel, float, World, BoundScore | None], tuple[Tensor, Tensor]]
Forward = Callable[[Tensor, Tensor, Tensor, Plan, Kernel, float, World, BoundScore | None], tuple[Tensor, list[Tensor]]]
Backward = Callable[
    [Tensor, Saved, Plan, Kernel, float, World, BoundScore | None], tuple[Tensor, Tensor, Tensor, list[Tensor]]
]
Kept = Callable[[Tensor, Tensor, Tensor, str, tuple[int, int], str, bool], list[Tensor]]


@dataclass(frozen=True)
class Transport:
    """plan(layout, mask, length, world, keys): what this rank of a world computes.
    forward(q, k, v, plan, kernel, scale, world, score): out, and what is kept for backward: lse alone, or q, k, v, out
    and lse as backward takes them in place of the local ones and, under a score, the local lse as the last of all.
    None shares memory with another or with an operand.
    kept(q, k, v, layout, (length, keys), group, scored): the like of what forward keeps, uninitialised; fakes will do.
    backward(grad_out, saved, plan, …): dq, dk, dv, and the gradients of the score's leaves; in the dtype of sums, or
    already in those of q, k and v.  No two share a buffer.

    All tensors but leaves are local; out, dq, dk, dv are laid out [B, S, heads, size]."""

    name: str
    plan: Callable[[str, Band, int, World, int], Plan]
    forward: Forward
    backward: Backward
    kept: Kept


def _keeping_lse(run: _LocalForward) -> Forward:
    def forward(
        q_BHSD: Tensor,
        k_BGSD: Tensor,
        v_BGSE: Tensor,
        plan: Plan,
        kernel: Kernel,
        scale: float,
        world: World,
        score: BoundScore | None,
    ) -> tuple[Tensor, list[Tensor]]:
        out, lse = run(q_BHSD, k_BGSD, v_BGSE, plan, kernel, scale, world, score)
        return out, [lse]

    return forward


def _lse(
    q_BHSD: Tensor, k_BGSD: Tensor, v_BGSE: Tensor, layout: str, lengths: tuple[int, int], group: str, scored: bool
) -> list[Tensor]:
    return [q_BHSD.new_empty(q_BHSD.shape[:3], dtype=accumulation_dtype(q_BHSD.dtype))]


def _plan(layout: str, mask: Band, length: int, world: World, keys: int) -> Plan:
    return make_plan(layout, mask, length, world.size, world.rank, keys)


def _plan_of_rings(layout: str, mask: Band, length: int, world: World, keys: int) -> Plan:
    return make_plan(layout, mask, length, world.size, world.rank, keys, world.inner.size)


def _local_plan(layout: str, mask: Band, length: int, world: World, keys: int) -> Plan:
    return make_local_plan(layout, mask, length, world.size, world.rank, keys)


TRANSPORTS = {
    transport.name: transport
    for transport in (
        Transport("ring", _plan, _keeping_lse(ring_forward), ring_backward, _lse),
        Transport("double_ring", _plan_of_rings, _keeping_lse(DOUBLE_RING.forward), DOUBLE_RING.backward, _lse),
        Transport("allgather", _plan, _keeping_lse(ALL_GATHER.forward), ALL_GATHER.backward, _lse),
        Transport("alltoall", _plan, ulysses_forward, ulysses_backward, dealt_like),
        # Of one step, so that the ring's backward sends nothing.  No strategy's own: for queries without a sequence.
        Transport("merge", _local_plan, _keeping_lse(partials_forward), RING.backward, _lse),
    )
}


def find_transport(name: str) -> Transport:
    """The transport called `name`; StrategyError lists the known ones."""
    if name not in TRANSPORTS:
        known = ", ".join(sorted(TRANSPORTS))
        raise StrategyError(f"there is no transport {name!r}", needed=f"one of: {known}")
    return TRANSPORTS[name]
