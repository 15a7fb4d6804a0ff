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

    In backward the gradients of keys and values follow one step behind, and nothing hides their last hop, home.  Under
    a window the ring ends with the last step in which any rank has work."""
    work = layout_work(layout, mask, job.local, job.keys, job.world, job.machine)
    forward, backward = (_lockstep(job, work, direction) for direction in (False, True))
    # Blocks that come and go, the gradients of both, and the sums of the output or of dq.
    moving = 2 * job.kv_bytes + 2 * job.gradient_bytes if work.hops else 0
    even = work.total / job.world
    return Attention(forward, backward, work.critical.pairs, even, moving + _sums(job))


def _sums(job: Job) -> int:
    """Bytes of a sum over tiles for each query."""
    return job.local * job.shape.heads * job.shape.head_width * job.shape.sum_bytes


def _lockstep(job: Job, work: LayoutWork, backward: bool) -> Phase:
    total = work.critical
    compute, merge = job.compute(total, backward), job.merge(total, backward)
    if not work.hops:
        return Phase(compute, merge, 0.0, 0.0)
    sent, following = job.kv_bytes, job.gradient_bytes if backward else 0
    *before, (last, times) = work.others
    between = [*before, (last, times - 1)]
    exposed = _late(job, sent, work.own, backward)
    exposed += sum(count * _late(job, sent + following, step, backward) for step, count in between)
    if backward:
        exposed += _late(job, following, last, backward) + job.machine.hop(following, job.world)
    return Phase(compute, merge, exposed, work.hops * sent + (work.hops + 1) * following)


def _late(job: Job, sent: float, step: Work, backward: bool) -> float:
    """Seconds by which a hop outlasts the step that hides it."""
    hidden = job.compute(step, backward) + job.merge(step, backward)
    return max(0.0, job.machine.hop(sent, job.world) - hidden)


def allgather(job: Job, layout: str, mask: Band) -> Attention:
    """All keys and values come first, in forward and again in backward; gradients are scattered at the end.  Nothing is
    merged, and nothing hides a transfer.  Gradients come back from those ranks only that have worked on the keys."""
    work = layout_work(layout, mask, job.local, job.keys, job.world, job.machine)
    total, hops = work.critical, job.world - 1 if work.hops else 0
    keys = hops * job.machine.hop(job.kv_bytes, job.world)
    gradients = work.hops * job.machine.hop(job.gradient_bytes, job.world)
    forward = Phase(job.compute(total, False), 0.0, keys, hops * job.kv_bytes)
    sent = hops * job.kv_bytes + work.hops * job.gradient_bytes
    backward = Phase(job.compute(total, True), 0.0, keys + gradients, sent)
    buffers = job.world * (job.kv_bytes + job.gradient_bytes)
    return Attention(forward, backward, total.pairs, work.total / job.world, buffers)


def alltoall(job: Job, layout: str, mask: Band) -> Attention:
    """Heads for sequence and back: each rank computes some heads over all tokens, in one call.  Backward sends
    as much: the gradient of the output there, those of q, k and v back.  Where heads do not divide, some ranks have one
    more than others; where there are fewer heads of keys than ranks, they are copied."""
    shape, world = job.shape, job.world
    whole = layout_work(layout, mask, job.local * world, job.keys * world, 1, job.machine).own
    heads, groups = -(-shape.heads // world), max(shape.kv_heads, world)
    share = Work(whole.pairs * heads, whole.cost * heads)
    one_head = replace(job, shape=replace(shape, heads=1, kv_heads=1))
    width = shape.head_width + shape.value_width
    there = job.local * heads * world * shape.head_width + job.keys * groups * width  # q, k, v
    there, back = (shape.item_bytes * part for part in (there, job.local * heads * world * shape.value_width))
    there, back = (there, back) if world > 1 else (0, 0)
    away = (world - 1) / world
    sent, exposed = (there + back) * away, sum(job.machine.exchange(part * away, world) for part in (there, back))
    forward, backward = (Phase(one_head.compute(share, way), 0.0, exposed, sent) for way in (False, True))
    return Attention(forward, backward, share.pairs / shape.heads, whole.pairs / world, there + back)


def merge(job: Job, layout: str, mask: Band) -> Attention:
    """Queries that every rank has meet each rank's own keys; what all find goes to all and is merged."""
    work = Work(job.local * job.keys, job.local * job.keys, job.local, job.keys)
    found = job.local * job.shape.heads * (job.shape.value_width + 1) * job.shape.sum_bytes
    hops = job.world - 1
    exposed = hops * job.machine.hop(found, job.world) if hops else 0.0
    forward = Phase(job.compute(work, False), job.merge(work * hops, False), exposed, hops * found)
    backward = Phase(job.compute(work, True), 0.0, 0.0, 0.0)
    return Attention(forward, backward, work.pairs, work.pairs, job.world * found)


# transport → what it costs one layer
TRANSPORTS: Mapping[str, Callable[[Job, str, Band], Attention]] = {
    "ring": ring,
    "allgather": allgather,
    "alltoall": alltoall,
    "merge": merge,
}
