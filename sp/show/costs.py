"""What an attention costs each rank: pairs of query and key to compute, bytes to send.  Exact, from the plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sp.heads import share_heads, shares_overlap
from sp.plan import Plan, count_steps, make_local_plan, make_plan
from sp.program import AttentionSite
from sp.strategy import Strategy
from sp.traffic import QUERIES, Widths, hop_bytes, travellers


@dataclass(frozen=True)
class Costs:
    """One number per rank, for one sequence of the batch and all heads.  area: (query, key) pairs.  forward, backward:
    bytes sent.  visited: whether queries travel in forward and in backward, for keys and values."""

    area: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    visited: tuple[bool, bool] = (False, False)

    @property
    def balance(self) -> float:
        """Mean over maximum: 1 when no rank waits for another's work."""
        return sum(self.area) / (len(self.area) * max(self.area))


def attention_costs(site: AttentionSite, strategy: Strategy, length: int, world: int, keys: int | None = None) -> Costs:
    """The costs of one attention of `length` queries to as many keys, or to `keys`, on `world` ranks."""
    make = make_local_plan if site.transport == "merge" else make_plan
    total = length if keys is None else keys
    plans = [make(strategy.layout, site.mask, length, world, rank, total) for rank in range(world)]
    steps = count_steps(plans[0])  # the same for all ranks
    sent = [SENT[site.transport](site, plan, steps) for plan in plans]
    return Costs(
        tuple(_areas(site, plans)),
        tuple(forward for forward, _ in sent),
        tuple(backward for _, backward in sent),
        _visited(site, length, total) if world > 1 else (False, False),
    )


def _visited(site: AttentionSite, length: int, keys: int) -> tuple[bool, bool]:
    """Whether queries travel, forward and backward."""
    if site.transport != "ring":
        return False, False
    forward, backward = (travellers(length, keys, _widths(site), way) == QUERIES for way in (False, True))
    return forward, backward


def _areas(site: AttentionSite, plans: list[Plan]) -> list[int]:
    """Where heads are dealt, each rank has all pairs of its heads."""
    if site.transport != "alltoall":
        return [plan.area * site.heads for plan in plans]
    whole = sum(plan.area for plan in plans)
    return [whole * len(share.heads) for share in share_heads(site.heads, site.kv_heads, len(plans))]


def _ring(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """Keys and values, or queries, one hop less than there are steps, and what follows them in as many hops."""
    forward, backward = (_around(site, plan, steps, backward) for backward in (False, True))
    return forward, backward


def _around(site: AttentionSite, plan: Plan, steps: int, backward: bool) -> int:
    what = travellers(plan.length, plan.keys, _widths(site), backward)
    total, way = (plan.length, 1) if what == QUERIES else (plan.keys, -1)
    ranks = ((plan.rank + way * step) % plan.world for step in range(steps))
    here = [plan.layout.local_length(total, rank, plan.world) for rank in ranks]
    there, back = hop_bytes(what, _widths(site), backward)
    return sum(here[:-1]) * there + sum(here[1:]) * back


def _widths(site: AttentionSite) -> Widths:
    return Widths(site.heads, site.kv_heads, site.head_width, site.value_width, site.item_bytes)


def _all_gather(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """Forward: keys and values to all others, as many as the rank has that holds most.  Backward: the same once more,
    and to each rank whose keys it has worked on their gradients, in the dtype of sums."""
    if steps == 1:
        return 0, 0
    held = [plan.layout.local_length(plan.keys, rank, plan.world) for rank in range(plan.world)]
    forward = (plan.world - 1) * max(held) * _key_width(site) * site.item_bytes
    returned = sum(held[step.source] for step in plan.steps[1:steps])
    return forward, forward + returned * _key_width(site) * _sum_bytes(site)


def _all_to_all(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """Forward: queries, keys and values of the others' heads to them; of its own heads the output of the others' tokens
    and the log of its sum.  Backward: the same, output and its gradient to where the queries go; back go the gradients,
    in the dtype of sums those of keys and values that several ranks have."""
    shares = share_heads(site.heads, site.kv_heads, plan.world)
    own, (queries, keys) = shares[plan.rank], plan.local
    to_heads = queries * (site.heads - len(own.heads))
    to_groups = keys * (sum(len(share.groups) for share in shares) - len(own.groups))
    to_queries, to_keys = (plan.length - queries) * len(own.heads), (plan.keys - keys) * len(own.groups)
    given = to_groups * _key_width(site) // site.kv_heads + to_heads * site.head_width
    result = site.value_width * site.item_bytes + _sum_bytes(site)
    gradient = _sum_bytes(site) if shares_overlap(shares) else site.item_bytes
    forward = given * site.item_bytes + to_queries * result
    there = given * site.item_bytes + to_heads * (result + site.value_width * site.item_bytes)
    back = to_queries * site.head_width * site.item_bytes + to_keys * _key_width(site) // site.kv_heads * gradient
    return forward, there + back


def _merge(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """Forward: each query's output and the log of its sum, in the dtype of sums, to all others.  Backward: nothing."""
    rows = (plan.world - 1) * plan.length * site.heads
    return rows * (site.value_width + 1) * _sum_bytes(site), 0


def _key_width(site: AttentionSite) -> int:
    """How many numbers one key and its value have, in all heads."""
    return site.kv_heads * (site.head_width + site.value_width)


def _sum_bytes(site: AttentionSite) -> int:
    """Of one number in the dtype of sums."""
    return max(site.item_bytes, 4)


# transport → bytes that the rank of a plan sends in forward and in backward, given how many steps have work
SENT: Mapping[str, Callable[[AttentionSite, Plan, int], tuple[int, int]]] = {
    "ring": _ring,
    "allgather": _all_gather,
    "alltoall": _all_to_all,
    "merge": _merge,
}
