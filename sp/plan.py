"""Plans: what one rank computes, step by step.  Integers only; importing this file imports no torch.

Queries at positions `a + s*x` and keys at `b + s*y` turn a band of positions into a band of tile
coordinates: `-left <= (b - a) + s*(y - x) <= right` bounds `y - x` by two integers.  So each pair of runs is
one tile that is empty, full or banded, for every layout and every length, and attention needs one loop
instead of one file per strategy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from sp.layout import WHOLE, Layout, Run, find_layout
from sp.mask import FULL, Band


@dataclass(frozen=True)
class Tile:
    """Local queries `q0:q1` against local keys `k0:k1` of one source rank.

    With x and y counted from q0 and k0, x sees y when `lower <= y - x <= upper`; None leaves that side open.
    Every row and every column of a tile sees something (`trim`).
    """

    q0: int
    q1: int
    k0: int
    k1: int
    lower: int | None = None
    upper: int | None = None

    @property
    def kind(self) -> str:
        if self.lower is None:
            return "full" if self.upper is None else ("causal" if self.upper == 0 else "band")
        return "band"

    @property
    def area(self) -> int:
        """How many (query, key) pairs are visible."""
        rows, columns = self.q1 - self.q0, self.k1 - self.k0
        if self.kind == "full":
            return rows * columns
        below = _pairs_up_to(rows, columns, columns - 1 if self.upper is None else self.upper)
        return below - (0 if self.lower is None else _pairs_up_to(rows, columns, self.lower - 1))

    def visible(self, x: int, y: int) -> bool:
        """Whether local query `x` sees local key `y` in this tile."""
        if not (self.q0 <= x < self.q1 and self.k0 <= y < self.k1):
            return False
        offset = (y - self.k0) - (x - self.q0)
        return (self.lower is None or self.lower <= offset) and (self.upper is None or offset <= self.upper)

    def __str__(self) -> str:
        return f"{self.kind} q[{self.q0}:{self.q1}] k[{self.k0}:{self.k1}]"


@dataclass(frozen=True)
class Step:
    """The tiles against the keys and values that come from rank `source`."""

    source: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Plan:
    """All steps of one rank, in the order in which a ring brings the keys and values.

    layout: deals the keys.  queries: deals the queries; WHOLE where every rank has them all, and its own keys only."""

    layout: Layout
    mask: Band
    length: int
    keys: int
    world: int
    rank: int
    steps: tuple[Step, ...]
    queries: Layout

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


@lru_cache(maxsize=4096)
def make_plan(layout: str, mask: Band, length: int, world: int, rank: int, keys: int | None = None) -> Plan:
    """The plan of `rank` for attention of `length` global positions to themselves, or to `keys` of another sequence.

    Both sequences are dealt by the same layout; the mask compares their positions."""
    rule = find_layout(layout)
    keys = length if keys is None else keys
    steps = tuple(make_step(rule, mask, length, keys, world, rank, (rank - hop) % world) for hop in range(world))
    return Plan(rule, mask, length, keys, world, rank, steps, rule)


def make_step(rule: Layout, mask: Band, length: int, keys: int, world: int, rank: int, source: int) -> Step:
    """One step of the plan of `rank`: its queries against the keys of `source`."""
    return Step(source, _merge(_tiles(rule.runs(length, rank, world), rule.runs(keys, source, world), mask)))


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
    return _count_steps(plan.layout.name, plan.mask, plan.length, plan.keys, plan.world)


@lru_cache(maxsize=4096)
def _count_steps(layout: str, mask: Band, length: int, keys: int, world: int) -> int:
    rule = find_layout(layout)
    queries, held = ([rule.runs(total, rank, world) for rank in range(world)] for total in (length, keys))
    for hop in reversed(range(world)):
        # From the last rank on: under a causal mask it sees the most, and answers at once.
        if any(_tiles(queries[rank], held[(rank - hop) % world], mask) for rank in reversed(range(world))):
            return hop + 1
    return 1


def _tiles(queries: tuple[Run, ...], keys: tuple[Run, ...], mask: Band) -> tuple[Tile, ...]:
    found = (_tile(q, q0, k, k0, mask) for q, q0 in _placed(queries) for k, k0 in _placed(keys))
    return tuple(tile for tile in found if tile is not None)


def _placed(runs: tuple[Run, ...]) -> Iterator[tuple[Run, int]]:
    """Each run with the local index at which it begins."""
    begin = 0
    for run in runs:
        yield run, begin
        begin += run.length


def _tile(q: Run, q0: int, k: Run, k0: int, mask: Band) -> Tile | None:
    assert q.stride == k.stride, "runs of one layout share their stride"
    shift, stride = k.start - q.start, q.stride
    lower = None if mask.left is None else -((mask.left + shift) // stride)
    upper = None if mask.right is None else (mask.right - shift) // stride
    return trim(Tile(q0, q0 + q.length, k0, k0 + k.length, lower, upper))


def trim(tile: Tile) -> Tile | None:
    """Drop rows and columns that see nothing, and bounds that forbid nothing; None when the tile is empty.

    `upper=-1` over q[0:4] k[0:4] becomes `upper=0` over q[1:4] k[0:3]: striped attention's strict mask."""
    rows, columns = tile.q1 - tile.q0, tile.k1 - tile.k0
    lower = 1 - rows if tile.lower is None else max(tile.lower, 1 - rows)
    upper = columns - 1 if tile.upper is None else min(tile.upper, columns - 1)
    if rows <= 0 or columns <= 0 or lower > upper:
        return None
    row0, row1 = max(0, -upper), min(rows, columns - lower)
    column0, column1 = max(0, lower), min(columns, rows + upper)
    lower, upper = lower + row0 - column0, upper + row0 - column0
    rows, columns = row1 - row0, column1 - column0
    return Tile(
        tile.q0 + row0,
        tile.q0 + row1,
        tile.k0 + column0,
        tile.k0 + column1,
        None if lower <= 1 - rows else lower,
        None if upper >= columns - 1 else upper,
    )


def within(tile: Tile, q0: int, q1: int, k0: int, k1: int) -> Tile | None:
    """The part of `tile` in the given rows and columns of it; None when it sees nothing there."""
    shift = (q0 - tile.q0) - (k0 - tile.k0)
    lower, upper = (None if bound is None else bound + shift for bound in (tile.lower, tile.upper))
    return trim(Tile(q0, q1, k0, k1, lower, upper))


def _pairs_up_to(rows: int, columns: int, upper: int) -> int:
    """How many (x, y) of a rows × columns grid have `y - x <= upper`."""
    first = max(0, min(rows, -upper))  # rows before it see nothing
    whole = max(first, min(rows, columns - 1 - upper))  # rows from it on see every column
    ramp = whole - first
    return ramp * (first + upper + 1) + ramp * (ramp - 1) // 2 + (rows - whole) * columns


def _merge(tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """Join tiles until no group of them makes one: zigzag's causal + full + causal becomes one causal."""
    for count in range(len(tiles), 1, -1):
        for group in combinations(tiles, count):
            if joined := _join(group):
                return _merge((joined, *(tile for tile in tiles if tile not in group)))
    return tiles


def _join(tiles: tuple[Tile, ...]) -> Tile | None:
    """The one tile that sees what the disjoint `tiles` see, if there is one.

    It can only be the smallest around them, and is it when it sees no more pairs than they do together."""
    q0, k0 = min(tile.q0 for tile in tiles), min(tile.k0 for tile in tiles)
    q1, k1 = max(tile.q1 for tile in tiles), max(tile.k1 for tile in tiles)
    lowers, uppers = zip(*(_diagonals(tile, q0, k0) for tile in tiles), strict=True)
    around = trim(Tile(q0, q1, k0, k1, min(lowers), max(uppers)))
    return around if around and around.area == sum(tile.area for tile in tiles) else None


def _diagonals(tile: Tile, q0: int, k0: int) -> tuple[int, int]:
    """The least and the greatest visible `y - x`, counted from q0 and k0."""
    lower = tile.q0 - tile.q1 + 1 if tile.lower is None else tile.lower
    upper = tile.k1 - tile.k0 - 1 if tile.upper is None else tile.upper
    shift = (tile.k0 - k0) - (tile.q0 - q0)
    return lower + shift, upper + shift
