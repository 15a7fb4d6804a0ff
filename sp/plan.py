"""Plans: what one rank computes, step by step.  Integers only; importing this file imports no torch.

Queries at positions `a + s*x` and keys at `b + s*y` turn a band of positions into a band of tile
coordinates: `-left <= (b - a) + s*(y - x) <= right` bounds `y - x` by two integers.  So each pair of runs is
one tile that is empty, full or banded, for every layout and every length, and attention needs one loop
instead of one file per strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sp.layout import WHOLE, Layout, find_layout
from sp.mask import FULL, Band
from sp.steps import Step, Steps, count_hops, make_step, source_of, there_and_back
from sp.tile import Tile, trim

__all__ = [
    "Plan",
    "Step",
    "Steps",
    "Tile",
    "count_steps",
    "make_local_plan",
    "make_plan",
    "make_step",
    "one_step",
    "plan_of",
    "there_and_back",
]


@dataclass(frozen=True)
class Plan:
    """All steps of one rank, in the order in which a ring brings the keys and values.

    layout: deals the keys.  queries: deals the queries; WHOLE where every rank has them all, and its own keys only.
    inner: in a ring of rings, how many neighbours make an inner one; None where all ranks are one ring."""

    layout: Layout
    mask: Band
    length: int
    keys: int
    world: int
    rank: int
    steps: Sequence[Step]
    queries: Layout
    inner: int | None = None

    @property
    def area(self) -> int:
        return sum(tile.area for step in self.steps for tile in step.tiles)

    @property
    def counts_queries(self) -> bool:
        """Whether this rank accounts for what belongs to its queries: of those that every rank has, the first does."""
        return self.queries is not WHOLE or self.rank == 0

    @property
    def local(self) -> tuple[int, int]:
        """How many queries and keys this rank has."""
        queries = self.queries.local_length(self.length, self.rank, self.world)
        return queries, self.layout.local_length(self.keys, self.rank, self.world)

    def source(self, rank: int, hop: int) -> int:
        """Whose keys and values are with `rank` in the step `hop`."""
        return source_of(rank, hop, self.world, self.inner)


@lru_cache(maxsize=4096)
def make_plan(
    layout: str, mask: Band, length: int, world: int, rank: int, keys: int | None = None, inner: int | None = None
) -> Plan:
    """The plan of `rank` for attention of `length` global positions to themselves, or to `keys` of another sequence.

    Both sequences are dealt by the same layout; the mask compares their positions.  inner: see `Plan`."""
    rule = find_layout(layout)
    keys = length if keys is None else keys
    steps = Steps(rule, mask, length, keys, world, rank, inner)
    return Plan(rule, mask, length, keys, world, rank, steps, rule, inner)


def one_step(plan: Plan, source: int) -> Step:
    """The step of a plan in which the keys of `source` are with its rank, without a look at the others."""
    return make_step(plan.layout, plan.mask, plan.length, plan.keys, plan.world, plan.rank, source)


def plan_of(plan: Plan, rank: int) -> Plan:
    """The plan of another rank of the same attention."""
    assert plan.queries is plan.layout, "what every rank has, no rank has of its own"
    return make_plan(plan.layout.name, plan.mask, plan.length, plan.world, rank, plan.keys, plan.inner)


@lru_cache(maxsize=4096)
def make_local_plan(layout: str, mask: Band, length: int, world: int, rank: int, keys: int) -> Plan:
    """The plan of `rank` for `length` queries that every rank has: one step, against the rank's own share of `keys`."""
    if mask != FULL:
        raise AssertionError(f"{mask} compares positions of two sequences, the queries have none")
    rule = find_layout(layout)
    tile = trim(Tile(0, length, 0, rule.local_length(keys, rank, world)))
    step = Step(rank, () if tile is None else (tile,))
    return Plan(rule, mask, length, keys, world, rank, (step,), WHOLE)


def count_steps(plan: Plan) -> int:
    """How many steps a ring needs until no rank has work left: fewer than `world` under a narrow window."""
    if plan.queries is WHOLE:
        return 1
    return count_hops(plan.layout.name, plan.mask, plan.length, plan.keys, plan.world, plan.inner)
