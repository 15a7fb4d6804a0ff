"""Plans: what one rank computes, step by step.  Integers only; importing this file imports no torch.

Queries at positions `a + s*x` and keys at `b + s*y` turn a band of positions into a band of tile
coordinates: `-left <= (b - a) + s*(y - x) <= right` bounds `y - x` by two integers.  So each pair of runs is
one tile that is empty, full or banded, for every layout and every length, and attention needs one loop
instead of one file per strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sp.cover import cover, meets
from sp.layout import WHOLE, Layout, find_layout
from sp.mask import FULL, Band
from sp.tile import Tile, halves, trim


@dataclass(frozen=True)
class Step:
    """The tiles against the keys and values that come from rank `source`."""

    source: int
    tiles: tuple[Tile, ...]


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
    steps: tuple[Step, ...]
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
        return _source(rank, hop, self.world, self.inner)


@lru_cache(maxsize=4096)
def make_plan(
    layout: str, mask: Band, length: int, world: int, rank: int, keys: int | None = None, inner: int | None = None
) -> Plan:
    """The plan of `rank` for attention of `length` global positions to themselves, or to `keys` of another sequence.

    Both sequences are dealt by the same layout; the mask compares their positions.  inner: see `Plan`."""
    rule = find_layout(layout)
    keys = length if keys is None else keys
    sources = (_source(rank, hop, world, inner) for hop in range(world))
    steps = tuple(make_step(rule, mask, length, keys, world, rank, source) for source in sources)
    return Plan(rule, mask, length, keys, world, rank, steps, rule, inner)


def make_step(rule: Layout, mask: Band, length: int, keys: int, world: int, rank: int, source: int) -> Step:
    """One step of the plan of `rank`: its queries against the keys of `source`."""
    return Step(source, cover(rule.runs(length, rank, world), rule.runs(keys, source, world), mask))


def _source(rank: int, hop: int, world: int, inner: int | None) -> int:
    """In a ring of rings blocks go round among `inner` neighbours, and then one such ring on."""
    size = inner or world
    (ring, place), (turn, step) = divmod(rank, size), divmod(hop, size)
    return (ring - turn) % (world // size) * size + (place - step) % size


def plan_of(plan: Plan, rank: int) -> Plan:
    """The plan of another rank of the same attention."""
    assert plan.queries is plan.layout, "what every rank has, no rank has of its own"
    return make_plan(plan.layout.name, plan.mask, plan.length, plan.world, rank, plan.keys, plan.inner)


@lru_cache(maxsize=4096)
def make_local_plan(layout: str, mask: Band, length: int, world: int, rank: int, keys: int) -> Plan:
    """The plan of `rank` for `length` queries that every rank has: one step, against the rank's own share of `keys`."""
    assert mask == FULL, f"{mask} compares positions of two sequences, the queries have none"
    rule = find_layout(layout)
    tile = trim(Tile(0, length, 0, rule.local_length(keys, rank, world)))
    step = Step(rank, () if tile is None else (tile,))
    return Plan(rule, mask, length, keys, world, rank, (step,), WHOLE)


def count_steps(plan: Plan) -> int:
    """How many steps a ring needs until no rank has work left: fewer than `world` under a narrow window."""
    if plan.queries is WHOLE:
        return 1
    return _count_steps(plan.layout.name, plan.mask, plan.length, plan.keys, plan.world, plan.inner)


@lru_cache(maxsize=4096)
def _count_steps(layout: str, mask: Band, length: int, keys: int, world: int, inner: int | None) -> int:
    rule = find_layout(layout)
    queries, held = ([rule.runs(total, rank, world) for rank in range(world)] for total in (length, keys))
    for hop in reversed(range(world)):
        # From the last rank on: under a causal mask it sees the most, and answers at once.
        sources = ((rank, _source(rank, hop, world, inner)) for rank in reversed(range(world)))
        if any(meets(queries[rank], held[source], mask) for rank, source in sources):
            return hop + 1
    return 1


def there_and_back(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """own, 1, 2, … → half of own, 1, 2, …, the other half of own; a single step stays as it is.

    What travels first is under way during the first half, what comes home last during the second."""
    own, *others = steps
    if not others:
        return steps
    first, second = halves(own.tiles)
    return Step(own.source, first), *others, Step(own.source, second)
