"""What an attention costs each rank: pairs of query and key to compute, bytes to send.  Exact, from the plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sp.heads import HeadShare, share_heads
from sp.plan import Plan, count_steps, make_local_plan, make_plan
from sp.program import AttentionSite
from sp.strategy import Strategy
from sp.traffic import KEYS, QUERIES, Widths, hop_bytes, travellers


@dataclass(frozen=True)
class Costs:
    """One number per rank, for one sequence of the batch and all heads.  area: (query, key) pairs.  forward, backward:
    bytes sent; outer_*: how many of them along the outer of two axes.  visited: whether queries travel, not keys,
    in forward and in backward."""

    area: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    outer_forward: tuple[int, ...]
    outer_backward: tuple[int, ...]
    visited: tuple[bool, bool]

    @property
    def balance(self) -> float:
        """Mean over maximum: 1 when no rank waits for another's work."""
        return sum(self.area) / (len(self.area) * max(self.area))


def attention_costs(site: AttentionSite, strategy: Strategy, length: int, world: int, keys: int | None = None) -> Costs:
    """The costs of one attention of `length` queries to as many keys, or to `keys`, on `world` ranks."""
    total = length if keys is None else keys
    about = strategy.layout, site.mask, length, world
    inner = strategy.shape[-1] if strategy.shape else None
    if site.transport == "merge":
        plans = [make_local_plan(*about, rank, total) for rank in range(world)]
    else:
        plans = [make_plan(*about, rank, total, inner) for rank in range(world)]
    steps = count_steps(plans[0])  # the same for all ranks
    sent = [SENT[site.transport](site, plan, steps) for plan in plans]
    outer = [OUTER.get(site.transport, _nothing)(site, plan, steps) for plan in plans]
    by_kind = (tuple(numbers) for numbers in (*zip(*sent, strict=True), *zip(*outer, strict=True)))
    visited = _visited(site, length, total) if steps > 1 else (False, False)
    return Costs(tuple(_areas(site, plans)), *by_kind, visited=visited)


def _visited(site: AttentionSite, length: int, keys: int) -> tuple[bool, bool]:
    """Whether queries travel, forward and backward."""
    if site.transport != "ring":
        return False, False
    forward, backward = (travellers(length, keys, _widths(site), way) == QUERIES for way in (False, True))
    return forward, backward


def _areas(site: AttentionSite, plans: list[Plan]) -> list[int]:
    """Where heads are dealt, each rank has all pairs of its heads that the ranks have with whom it deals."""
    if site.transport != "alltoall":
        return [plan.area * site.heads for plan in plans]
    _, joined = plans[0].layout.nesting(len(plans))
    whole = [sum(plan.area for plan in plans[begin : begin + joined]) for begin in range(0, len(plans), joined)]
    return [whole[plan.rank // joined] * len(_dealt(site, plan)[plan.rank % joined].heads) for plan in plans]


def _ring(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """Keys and values, or queries, one hop less than there are steps, and what follows them in as many hops."""
    forward, backward = (_around(site, plan, steps, backward) for backward in (False, True))
    return forward, backward


def _around(site: AttentionSite, plan: Plan, steps: int, backward: bool) -> int:
    if travellers(plan.length, plan.keys, _widths(site), backward) == KEYS:
        return _round(site, _held(plan)[:steps])[backward]
    ranks = ((plan.rank + step) % plan.world for step in range(steps))
    return _hops(QUERIES, site, [plan.layout.local_length(plan.length, rank, plan.world) for rank in ranks], backward)


def _hops(what: str, site: AttentionSite, here: list[int], backward: bool) -> int:
    """here: how many tokens a rank has in each step."""
    there, back = hop_bytes(what, _widths(site), backward)
    return sum(here[:-1]) * there + sum(here[1:]) * back


def _widths(site: AttentionSite) -> Widths:
    return Widths(site.heads, site.kv_heads, site.head_width, site.value_width, site.item_bytes)


def _round(site: AttentionSite, held: list[int]) -> tuple[int, int]:
    """Where keys travel.  held: how many a rank has in each step."""
    return _hops(KEYS, site, held, False), _hops(KEYS, site, held, True)


def _held(plan: Plan) -> list[int]:
    """How many keys this rank has in each step."""
    return [plan.layout.local_length(plan.keys, step.source, plan.world) for step in plan.steps]


def _double_ring(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """A ring in each turn, and one of what turns begin with."""
    turns = [_round(site, turn) for turn in _turns(plan, steps)]
    return _total([_outer_ring(site, plan, steps), *turns])


def _outer_ring(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    return _round(site, [turn[0] for turn in _turns(plan, steps)])


def _turns(plan: Plan, steps: int) -> list[list[int]]:
    held, size = _held(plan)[:steps], plan.inner or plan.world
    return [held[begin : begin + size] for begin in range(0, steps, size)]


def _total(sent: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(forward for forward, _ in sent), sum(backward for _, backward in sent)


def _all_gather(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """Forward: keys and values to all others, as many as the rank has that holds most.  Backward: the same once more,
    and to each rank whose keys it has worked on their gradients."""
    if steps == 1:
        return 0, 0
    held = [plan.layout.local_length(plan.keys, rank, plan.world) for rank in range(plan.world)]
    forward = (plan.world - 1) * max(held) * _key_width(site) * site.item_bytes
    returned = sum(held[step.source] for step in plan.steps[1:steps])
    return forward, forward + returned * _key_width(site) * site.item_bytes


def _all_to_all(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """Forward: queries, keys and values of the others' heads to them; of its own heads the others' output, and under a
    score the logarithms of their sums.  Backward:
    the gradient of the output to where the queries went; back go those of queries, keys and values.  Between,
    on two axes, the outer ring."""
    layout, joined = plan.layout.nesting(plan.world)
    shares, group = _dealt(site, plan), (plan.rank // joined, plan.world // joined)
    all_queries, all_keys = (layout.local_length(total, *group) for total in (plan.length, plan.keys))
    own, (queries, keys) = shares[plan.rank % joined], plan.local
    to_heads = queries * (site.heads - len(own.heads))
    to_groups = keys * (sum(len(share.groups) for share in shares) - len(own.groups))
    to_queries, to_keys = (all_queries - queries) * len(own.heads), (all_keys - keys) * len(own.groups)
    given = to_groups * _key_width(site) // site.kv_heads + to_heads * site.head_width
    result = site.value_width * site.item_bytes
    sums = to_queries * _sum_bytes(site) if site.score else 0
    forward = given * site.item_bytes + to_queries * result + sums
    there = to_heads * result
    back = (
        to_queries * site.head_width * site.item_bytes + to_keys * _key_width(site) // site.kv_heads * site.item_bytes
    )
    return _total([(forward, there + back), _ring_between(site, plan, steps)])


def _ring_between(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """The keys of this rank's heads, in a ring of the ranks that have the same."""
    layout, joined = plan.layout.nesting(plan.world)
    own = _dealt(site, plan)[plan.rank % joined]
    if not own.heads:
        return 0, 0
    between = make_plan(layout.name, plan.mask, plan.length, plan.world // joined, plan.rank // joined, plan.keys)
    kv_heads = len(own.groups if own.grouped else own.heads)
    return _ring(replace(site, heads=len(own.heads), kv_heads=kv_heads), between, count_steps(between))


def _dealt(site: AttentionSite, plan: Plan) -> tuple[HeadShare, ...]:
    """The heads of each of the ranks that deal with each other."""
    return share_heads(site.heads, site.kv_heads, plan.layout.nesting(plan.world)[1])


def _merge(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """Forward: each query's output and the log of its sum, in the dtype of sums, to all others.  Backward: nothing."""
    rows = (plan.world - 1) * plan.length * site.heads
    return rows * (site.value_width + 1) * _sum_bytes(site), 0


def _nothing(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    return 0, 0


def _key_width(site: AttentionSite) -> int:
    """How many numbers one key and its value have, in all heads."""
    return site.kv_heads * (site.head_width + site.value_width)


def _sum_bytes(site: AttentionSite) -> int:
    """Of one number in the dtype of sums."""
    return max(site.item_bytes, 4)


_Count = Callable[[AttentionSite, Plan, int], tuple[int, int]]

# transport → bytes that the rank of a plan sends in forward and in backward, given how many steps have work
SENT: Mapping[str, _Count] = {
    "ring": _ring,
    "double_ring": _double_ring,
    "allgather": _all_gather,
    "alltoall": _all_to_all,
    "merge": _merge,
}

# and those of them that go along the outer of two axes
OUTER: Mapping[str, _Count] = {"double_ring": _outer_ring, "alltoall": _ring_between}
