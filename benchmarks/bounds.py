"""Bounds: the speed that perfect kernels and free communication would reach, from the plans alone.

Ring's last rank has work in every step: 2 ranks then need 3/4 of the time of one where striped and zigzag need 1/2.
Where ranks do not wait for each other between steps, the one with the most work in all counts.
"""

from __future__ import annotations

from sp.heads import share_heads
from sp.mask import CAUSAL
from sp.plan import Plan, make_plan
from sp.strategy import find_strategy


def attention_bound(strategy: str, length: int, world: int, heads: int, kv_heads: int) -> float | None:
    """Of causal attention on `world` ranks, over one process with as many threads; None for unknown transports."""
    found = find_strategy(strategy)
    if found.transport == "alltoall":
        return heads / world / max(len(share.heads) for share in share_heads(heads, kv_heads, world))
    if found.transport not in ("ring", "allgather"):
        return None
    plans = [make_plan(found.layout, CAUSAL, length, world, rank) for rank in range(world)]
    whole = sum(plan.area for plan in plans)
    busiest = critical_area(plans) if found.transport == "ring" else max(plan.area for plan in plans)
    return whole / world / busiest


def critical_area(plans: list[Plan]) -> int:
    """Pairs of the busiest rank of each step, summed over the steps."""
    steps = zip(*(plan.steps for plan in plans), strict=True)
    return sum(max(sum(tile.area for tile in step.tiles) for step in together) for together in steps)


def step_bound(share: float, attention: float | None) -> float | None:
    """Of a whole step of which attention takes `share`, the rest perfectly divided; 1 where attention's is."""
    return None if attention is None else 1 / (share / attention + 1 - share)
