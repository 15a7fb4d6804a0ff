"""How keys and values reach the queries, in seconds: one function for each transport, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sp.costs.phase import Job, Phase
from sp.costs.work import LayoutWork, Work, layout_work
from sp.layout import find_layout
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

    In backward the gradients of keys and values follow one step behind: half of the step on a rank's own keys hides the
    first hop, and the other half the last one, home.  Under a window the ring ends with the last step in which any rank
    has work."""
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
    first, last = work.others[0][0], work.others[-1][0]
    exposed = _late(job, sent, work.own, backward, 0.5 if backward else 1.0)
    exposed += sum(count * _late(job, sent + following, step, backward) for step, count in work.others)
    exposed -= _late(job, sent + following, last, backward)  # no keys are under way any more
    if backward and work.hops > 1:
        exposed += _late(job, following, last, backward)
        exposed += _late(job, sent, first, backward) - _late(job, sent + following, first, backward)
    if backward:
        exposed += _late(job, following, work.own, backward, 0.5)
    return Phase(compute, merge, exposed, work.hops * (sent + following))


def _late(job: Job, sent: float, step: Work, backward: bool, part: float = 1.0) -> float:
    """Seconds by which a hop outlasts the step that hides it, or the part of that."""
    hidden = part * (job.compute(step, backward) + job.merge(step, backward))
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
    """Heads for sequence and back: each rank computes some heads over all tokens of its neighbours, in a ring of them
    where they are not all ranks.  Backward sends as much: the gradient of the output there, those of q, k and v back.
    Where heads do not divide, some ranks have one more than others; where there are fewer heads of keys than ranks,
    they are copied."""
    shape = job.shape
    base, inner = find_layout(layout).nesting(job.world)
    heads, groups = -(-shape.heads // inner), max(shape.kv_heads, inner)
    width = shape.head_width + shape.value_width
    there = job.local * heads * inner * shape.head_width + job.keys * groups * width  # q, k, v
    there, back = (shape.item_bytes * part for part in (there, job.local * heads * inner * shape.value_width))
    there, back = (there, back) if inner > 1 else (0, 0)
    away = (inner - 1) / inner
    sent, exposed = (there + back) * away, sum(job.machine.exchange(part * away, inner) for part in (there, back))
    deal = Phase(0.0, 0.0, exposed, sent)
    between = ring(_dealt(job, heads, -(-groups // inner), inner), base.name, mask)
    critical, even = between.critical * heads / shape.heads, between.even / inner
    buffers = there + back + (between.buffers if inner < job.world else 0)
    return Attention(between.forward + deal, between.backward + deal, critical, even, buffers)


def _dealt(job: Job, heads: int, groups: int, inner: int) -> Job:
    """Of a rank that has some heads of its neighbours' tokens, in a ring of such ranks, one in each group of them."""
    machine = job.machine if job.world <= job.machine.ranks_per_node else replace(job.machine, ranks_per_node=1)
    shape = replace(job.shape, heads=heads, kv_heads=groups)
    return Job(shape, machine, job.local * inner, job.world // inner, job.keys * inner)


def double_ring(job: Job, layout: str, mask: Band) -> Attention:
    """A ring whose slow hops have the time of a whole turn among neighbours, and are one in each."""
    inner, machine = job.inner or job.world, job.machine
    if inner <= machine.ranks_per_node < job.world:
        machine = replace(
            machine,
            node_bandwidth=min(machine.link_bandwidth, machine.node_bandwidth * inner),
            node_latency=max(machine.link_latency, machine.node_latency / inner),
        )
    return ring(replace(job, machine=machine), layout, mask)


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
    "double_ring": double_ring,
    "allgather": allgather,
    "alltoall": alltoall,
    "merge": merge,
}
