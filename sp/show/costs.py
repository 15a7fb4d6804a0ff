"""What an attention costs each rank: pairs of query and key to compute, bytes to send.  Exact, from the plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sp.plan import Plan, count_steps, make_local_plan, make_plan
from sp.program import AttentionSite
from sp.strategy import Strategy


@dataclass(frozen=True)
class Costs:
    """One number per rank.  area: (query, key) pairs, of one head.  forward, backward: bytes sent, for one sequence of
    the batch, all heads."""

    area: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]

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
        tuple(plan.area for plan in plans),
        tuple(forward for forward, _ in sent),
        tuple(backward for _, backward in sent),
    )


def _ring(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """Forward: keys and values, one hop less than there are steps.  Backward: the same once more, and their gradients
    in the dtype of sums, which after the last step also make the hop home."""
    if steps == 1:
        return 0, 0
    held = [plan.layout.local_length(plan.keys, step.source, plan.world) for step in plan.steps[:steps]]
    width = site.kv_heads * (site.head_width + site.value_width)
    forward = sum(held[:-1]) * width * site.item_bytes
    return forward, forward + sum(held) * width * max(site.item_bytes, 4)


def _merge(site: AttentionSite, plan: Plan, steps: int) -> tuple[int, int]:
    """Forward: each query's output and the log of its sum, in the dtype of sums, to all others.  Backward: nothing."""
    rows = (plan.world - 1) * plan.length * site.heads
    return rows * (site.value_width + 1) * max(site.item_bytes, 4), 0


# transport → bytes that the rank of a plan sends in forward and in backward, given how many steps have work
SENT: Mapping[str, Callable[[AttentionSite, Plan, int], tuple[int, int]]] = {
    "ring": _ring,
    "merge": _merge,
}
