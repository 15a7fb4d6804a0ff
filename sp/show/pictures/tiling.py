"""Which part of one attention each rank computes in which step: blocks of a matrix, ranks by ranks.

    rank of the query │ 0   1   2   3  rank of the key       striped, 4 ranks; the number is the step
                    0 │ 0◣  3◣  2◣  1◣
                    1 │ 1◣  0◣  3◣  2◣

Of large worlds some ranks are drawn, evenly chosen, and as many groups of neighbouring steps as there are ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sp.layout import WHOLE
from sp.mask import Band
from sp.plan import Plan, make_local_plan, make_plan, make_step
from sp.show.grid import WIDEST
from sp.tile import Tile


@dataclass(frozen=True)
class Block:
    """What `rank` does with the keys of `source`, in step `step`.  group: of steps, in large worlds.
    queries, keys: how many the two ranks hold."""

    rank: int
    source: int
    step: int
    group: int
    tiles: tuple[Tile, ...]
    queries: int
    keys: int

    @property
    def area(self) -> int:
        return sum(tile.area for tile in self.tiles)


@dataclass(frozen=True)
class Tiling:
    """ranks: those drawn, of `world`.  steps: (first, last) of each group.  blocks: by rank, then by source."""

    ranks: tuple[int, ...]
    world: int
    steps: tuple[tuple[int, int], ...]
    blocks: tuple[Block, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every rank is drawn."""
        return len(self.ranks) == self.world


@dataclass(frozen=True)
class Setting:
    """One attention under one strategy.  local: every rank has all queries, and works on its own keys alone."""

    layout: str
    mask: Band
    queries: int
    keys: int
    world: int
    inner: int | None = None
    local: bool = False

    def plan(self, rank: int) -> Plan:
        if self.local:
            return make_local_plan(self.layout, self.mask, self.queries, self.world, rank, self.keys)
        return make_plan(self.layout, self.mask, self.queries, self.world, rank, self.keys, self.inner)


def chosen_ranks(world: int) -> tuple[int, ...]:
    """All of them, or `WIDEST` from rank 0 on at the same distance, up to one."""
    return tuple(range(world)) if world <= WIDEST else tuple(place * world // WIDEST for place in range(WIDEST))


def make_tiling(setting: Setting) -> Tiling:
    """The blocks of the drawn ranks."""
    ranks, steps = chosen_ranks(setting.world), 1 if setting.local else setting.world
    firsts = chosen_ranks(steps)  # as many groups of steps as ranks
    groups = tuple(zip(firsts, [*(first - 1 for first in firsts[1:]), steps - 1], strict=True))
    blocks = (block for rank in ranks for block in _blocks(setting.plan(rank), ranks, groups))
    return Tiling(ranks, setting.world, groups, tuple(blocks))


def _blocks(plan: Plan, sources: tuple[int, ...], groups: tuple[tuple[int, int], ...]) -> Iterator[Block]:
    """Only the steps that are drawn are worked out."""
    queries = plan.local[0]
    if plan.queries is WHOLE:
        yield Block(plan.rank, plan.rank, 0, 0, plan.steps[0].tiles, queries, plan.local[1])
        return
    hops = {plan.source(plan.rank, hop): hop for hop in range(plan.world)}
    for source in sources:
        step = make_step(plan.layout, plan.mask, plan.length, plan.keys, plan.world, plan.rank, source)
        hop, keys = hops[source], plan.layout.local_length(plan.keys, source, plan.world)
        yield Block(plan.rank, source, hop, _group(hop, groups), step.tiles, queries, keys)


def _group(step: int, groups: tuple[tuple[int, int], ...]) -> int:
    return next(group for group, (first, last) in enumerate(groups) if first <= step <= last)
