"""How keys and values reach the queries, in seconds: one function for each transport, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sp.costs.phase import Job, Phase
from sp.costs.work import LayoutWork, Work, layout_work
from sp.mask import Band


@dataclass(frozen=True)
class Attention:
    """One layer's attention.  critical: what the busiest rank computes, in pairs of one head; even: a rank's mean.
    buffers: bytes beside the activations."""

    forward: Phase
    backward: Phase
    critical: float
    even: float
    buffers: float


def ring(job: Job, layout: str, mask: Band) -> Attention:
    """Keys and values go from rank to rank while the step before is computed; all ranks wait for the busiest.

    In backward the gradients of keys and values follow one step behind, and nothing hides their last hop, home."""
    work = layout_work(layout, mask, job.local, job.machine)
    forward, backward = (_lockstep(job, work, direction) for direction in (False, True))
    # Blocks that come and go, the gradients of both, and the sums of the output or of dq.
    sums = job.local * job.shape.heads * job.shape.head_width * job.shape.sum_bytes
    moving = 2 * job.kv_bytes + 2 * job.gradient_bytes if job.world > 1 else 0
    even = work.total(job.world) / job.world
    return Attention(forward, backward, work.critical(job.world).pairs, even, moving + sums)


def _lockstep(job: Job, work: LayoutWork, backward: bool) -> Phase:
    total = work.critical(job.world)
    compute, merge = job.compute(total, backward), job.merge(total, backward)
    if job.world == 1:
        return Phase(compute, merge, 0.0, 0.0)
    own, other = (job.compute(step, backward) + job.merge(step, backward) for step in (work.own, work.longer))
    hops = job.world - 1
    sent, following = job.kv_bytes, job.gradient_bytes if backward else 0
    exposed = _late(job, sent, own) + (hops - 1) * _late(job, sent + following, other)
    if backward:
        exposed += _late(job, following, other) + job.machine.hop(following, job.world)
    return Phase(compute, merge, exposed, hops * sent + (hops + 1) * following)


def _late(job: Job, sent: float, hidden: float) -> float:
    """Seconds by which a hop outlasts the step that hides it."""
    return max(0.0, job.machine.hop(sent, job.world) - hidden)


def allgather(job: Job, layout: str, mask: Band) -> Attention:
    """All keys and values come first, in forward and again in backward; gradients are scattered at the end.  Nothing is
    merged, and nothing hides a transfer."""
    work = layout_work(layout, mask, job.local, job.machine)
    total, hops = work.critical(job.world), job.world - 1
    keys, gradients = (hops * job.machine.hop(sent, job.world) for sent in (job.kv_bytes, job.gradient_bytes))
    forward = Phase(job.compute(total, False), 0.0, keys, hops * job.kv_bytes)
    backward = Phase(job.compute(total, True), 0.0, keys + gradients, hops * (job.kv_bytes + job.gradient_bytes))
    buffers = job.world * (job.kv_bytes + job.gradient_bytes)
    return Attention(forward, backward, total.pairs, work.total(job.world) / job.world, buffers)


def alltoall(job: Job, layout: str, mask: Band) -> Attention:
    """Heads for sequence and back: each rank computes some heads over all tokens, in one call.  Backward sends
    as much: the gradient of the output there, those of q, k and v back.  Where heads do not divide, some ranks have one
    more than others; where there are fewer heads of keys than ranks, they are copied."""
    shape, world = job.shape, job.world
    whole = layout_work(layout, mask, job.local * world, job.machine).own
    heads = -(-shape.heads // world)
    share = Work(whole.pairs * heads, whole.cost * heads)
    one_head = replace(job, shape=replace(shape, heads=1, kv_heads=1))
    token = job.local * shape.head_width * shape.item_bytes if world > 1 else 0  # bytes of one head
    there, back = (heads * world + 2 * max(shape.kv_heads, world)) * token, heads * world * token  # q, k, v; out
    away = (world - 1) / world
    sent, exposed = (there + back) * away, sum(job.machine.exchange(part * away, world) for part in (there, back))
    forward, backward = (Phase(one_head.compute(share, way), 0.0, exposed, sent) for way in (False, True))
    return Attention(forward, backward, share.pairs / shape.heads, whole.pairs / world, there + back)


# transport → what it costs one layer
TRANSPORTS: Mapping[str, Callable[[Job, str, Band], Attention]] = {
    "ring": ring,
    "allgather": allgather,
    "alltoall": alltoall,
}
