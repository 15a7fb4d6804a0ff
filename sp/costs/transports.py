"""How keys and values reach the queries, in seconds: one function for each transport, and the table of them.

Bytes are those that the report counts; what hides them is what the runtime computes meanwhile, and tests hold a ring
against one that is played step by step.

    >>> list(sp.costs.TRANSPORTS)
    ['ring', 'double_ring', 'allgather', 'alltoall', 'merge']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sp.costs.phase import Job, Phase
from sp.costs.work import LayoutWork, Work, layout_work
from sp.costs.workload import AttentionShape
from sp.heads import HeadShare, share_heads
from sp.layout import find_layout
from sp.mask import Band


@dataclass(frozen=True)
class Attention:
    """One layer's attention.  critical: what the busiest rank computes, in pairs of one head; even: a rank's mean.
    buffers: bytes beside the activations, of one layer at a time.  kept: what each layer keeps for backward beside
    queries, keys, values, the output and the log of its sums."""

    forward: Phase
    backward: Phase
    critical: float
    even: float
    buffers: float
    kept: float = 0.0


def ring(job: Job, layout: str, mask: Band) -> Attention:
    """Keys and values go from rank to rank while the step before is computed; all ranks wait for the busiest.

    What comes of them follows one step behind and goes home while half of the own keys is computed.  Under a window the
    ring ends with the last step in which any rank has work."""
    work = layout_work(layout, mask, job.local, job.keys, job.world, job.machine)
    forward, backward = (_lockstep(job, work, direction) for direction in (False, True))
    return _attention(job, work, forward, backward, rooms=2)


def _attention(job: Job, work: LayoutWork, forward: Phase, backward: Phase, rooms: int) -> Attention:
    """rooms: buffers for what travels, and as many for what comes of it; beside them the sums of the output or dq."""
    sums = job.local * job.shape.heads * job.shape.head_width * job.shape.sum_bytes
    moving = rooms * max(sum(job.hop(direction)) for direction in (False, True))
    buffers = moving + sums if work.hops else 0
    return Attention(forward, backward, work.critical.pairs, work.total / job.world, buffers)


def _lockstep(job: Job, work: LayoutWork, backward: bool) -> Phase:
    total = work.critical
    compute, merge = job.compute(total, backward), job.merge(total, backward)
    if not work.hops:
        return Phase(compute, merge, 0.0, 0.0)
    there, back = job.hop(backward)
    own = job.seconds(work.own, backward) / (2 if back else 1)
    exposed = _late(job, there, own) + _late(job, back, own)
    if work.hops > 1:
        (first, firsts), *between = work.others
        *between, (last, lasts) = [(first, firsts - 1), *between]
        exposed += _late(job, there, job.seconds(first, backward)) + _late(job, back, job.seconds(last, backward))
        for step, count in (*between, (last, lasts - 1)):
            exposed += count * _late(job, there + back, job.seconds(step, backward))
    return Phase(compute, merge, exposed, work.hops * (there + back))


def _late(job: Job, sent: float, hidden: float) -> float:
    """Seconds by which a hop outlasts the step that hides it."""
    return max(0.0, job.machine.hop(sent, job.world) - hidden) if sent else 0.0


def double_ring(job: Job, layout: str, mask: Band) -> Attention:
    """A ring among neighbours in each turn; what a turn begins with goes over the slow links during the whole of it.

    All steps count as equally long, as they are where the layout is striped."""
    work = layout_work(layout, mask, job.local, job.keys, job.world, job.machine)
    forward, backward = (_turning(job, work, direction) for direction in (False, True))
    return _attention(job, work, forward, backward, rooms=4)


def _turning(job: Job, work: LayoutWork, backward: bool) -> Phase:
    total = work.critical
    compute, merge = job.compute(total, backward), job.merge(total, backward)
    there, back = (job.kv_bytes, job.gradient_bytes if backward else 0) if work.hops else (0, 0)
    step = (compute + merge) / (work.hops + 1)
    turns = -(-(work.hops + 1) // job.inner)
    near = work.hops + 1 - turns  # hops among neighbours, in all turns
    exposed = near * max(0.0, job.machine.hop(there + back, job.inner) - step)
    exposed += (turns - 1) * max(0.0, job.machine.hop(there + back, job.world) - job.inner * step)
    exposed += max(0.0, job.machine.hop(back, job.world) - job.seconds(work.own, backward) / 2) if back else 0.0
    return Phase(compute, merge, exposed if work.hops else 0.0, (near + turns - 1) * (there + back))


def allgather(job: Job, layout: str, mask: Band) -> Attention:
    """All keys and values come at once while the own ones are computed, in forward and again in backward; gradients go
    home at once, from the ranks that have worked on the keys, while the second half of the own ones is computed."""
    work = layout_work(layout, mask, job.local, job.keys, job.world, job.machine)
    gathers = job.world - 1 if work.hops else 0
    forward, backward = (_gathering(job, work, gathers, direction) for direction in (False, True))
    buffers = 2 * job.world * job.kv_bytes if gathers else 0  # they, and as many gradients in their dtype
    return Attention(forward, backward, work.critical.pairs, work.total / job.world, buffers)


def _gathering(job: Job, work: LayoutWork, gathers: int, backward: bool) -> Phase:
    """gathers: of how many other ranks the keys come."""
    hidden, returns = job.seconds(work.own, backward) / (2 if backward else 1), work.hops if backward else 0
    exposed = max(0.0, gathers * job.machine.hop(job.kv_bytes, job.world) - hidden)
    exposed += max(0.0, returns * job.machine.hop(job.kv_bytes, job.world) - hidden)
    compute, merge = (measure(work.critical, backward) for measure in (job.compute, job.merge))
    return Phase(compute, merge, exposed, (gathers + returns) * job.kv_bytes)


def alltoall(job: Job, layout: str, mask: Band) -> Attention:
    """Heads for sequence and back: each rank computes some heads over all tokens of those that it deals with.  Where
    these are not all ranks, a ring brings it the keys of the others.  Where heads do not divide, some ranks have one
    more than others; where there are fewer heads of keys than ranks, they are copied."""
    base, joined = find_layout(layout).nesting(job.world)
    shares = share_heads(job.shape.heads, job.shape.kv_heads, joined)
    most = max(shares, key=lambda share: len(share.heads))
    groups = len(most.groups if most.grouped else most.heads)
    own = replace(job.shape, heads=len(most.heads), kv_heads=groups)
    nodes = replace(job.machine, ranks_per_node=max(1, job.machine.ranks_per_node // joined))
    others = job.world // joined
    between = ring(Job(own, nodes, job.local * joined, others, job.keys * joined, others), base.name, mask)
    first, second = (_dealt(job, shares, direction) for direction in (False, True))
    return Attention(
        between.forward + _exchanges(job, first, joined),
        between.backward + _exchanges(job, second, joined),
        between.critical * len(most.heads) / job.shape.heads,
        between.even / joined,
        between.buffers + max(sum(first), sum(second)),
        _kept_twice(job, own, joined) if joined > 1 else 0.0,
    )


def _kept_twice(job: Job, own: AttentionShape, joined: int) -> int:
    """What was dealt is kept in place of what there was before, but for the output, which the next layer has its own
    of, and but for copies of keys and values.  own: the heads of one rank."""
    outputs = job.local * joined * own.heads * own.value_width
    copies = job.keys * (joined * own.kv_width - job.shape.kv_width)
    return (outputs + copies) * own.item_bytes


def _exchanges(job: Job, parts: tuple[int, int], world: int) -> Phase:
    """Nothing hides them."""
    return Phase(0.0, 0.0, sum(job.machine.exchange(part, world) for part in parts), sum(parts))


def _dealt(job: Job, shares: tuple[HeadShare, ...], backward: bool) -> tuple[int, int]:
    """Bytes that the rank which sends most sends there and back: queries, keys and values, and the output back; in
    backward the output's gradient there, and the other gradients back."""
    shape, joined = job.shape, len(shares)
    if joined == 1:
        return 0, 0
    copies, width = sum(len(share.groups) for share in shares), shape.head_width + shape.value_width
    there = back = 0
    for heads, groups in {(len(share.heads), len(share.groups)) for share in shares}:
        to_heads, to_groups = job.local * (shape.heads - heads), job.keys * (copies - groups)
        to_queries, to_keys = job.local * (joined - 1) * heads, job.keys * (joined - 1) * groups
        given = to_heads * shape.value_width if backward else to_heads * shape.head_width + to_groups * width
        result = to_queries * shape.head_width + to_keys * width if backward else to_queries * shape.value_width
        there, back = max(there, given), max(back, result)
    return there * shape.item_bytes, back * shape.item_bytes


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
