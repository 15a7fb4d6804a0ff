"""What a rank computes in a step, from the plan: the pairs that count, and those that a kernel computes for them.

When each rank holds the same even number of tokens, a step depends on two things only: how many ranks back the keys
come from, and whether that way leads to an earlier rank or around, to a later one.

             own        from an earlier rank   from a later rank
contiguous   causal     full                   nothing
striped      causal     causal                 causal without the diagonal
zigzag       causal     full k[:half]          full q[half:]

A window hides more the further away the keys are: contiguous and zigzag then have steps without work, and striped has
steps that see one key less.  So of the steps from earlier ranks each has at most the work of the one before, and of
those from later ranks at least that: where two are equal, so are all between them, and a world of thousands takes a few
steps to look at, each for the first and the last rank that it concerns.

Tests hold all of it against the plans of every rank.  Zigzag under a window is the one that is not exact: there ranks
differ in how their tiles join, and a rank in between may need up to a tenth longer where a tile of the kernel is as
large as a chunk (3 % where it has 1,024 tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from sp.costs.machine import Machine
from sp.layout import find_layout
from sp.mask import Band
from sp.plan import make_step
from sp.tile import Tile


@dataclass(frozen=True)
class Work:
    """Of one head.  pairs: visible ones.  cost: those that the kernel computes, in pairs at its full speed.
    queries, keys: rows and columns of all tiles, whose results are merged."""

    pairs: int = 0
    cost: float = 0.0
    queries: int = 0
    keys: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.pairs + other.pairs,
            self.cost + other.cost,
            self.queries + other.queries,
            self.keys + other.keys,
        )

    def __mul__(self, times: int) -> Work:
        return Work(self.pairs * times, self.cost * times, self.queries * times, self.keys * times)


@dataclass(frozen=True)
class LayoutWork:
    """own: of the first step, on the rank's own keys.  others: of those that follow until no rank has work left, each
    as long as for the rank that has most to do in it, and how many such steps there are in a row.
    total: the pairs of all ranks."""

    own: Work
    others: tuple[tuple[Work, int], ...]
    total: int

    @property
    def hops(self) -> int:
        """How often keys travel."""
        return sum(count for _, count in self.others)

    @property
    def critical(self) -> Work:
        """All steps."""
        return sum((work * count for work, count in self.others), self.own)


@lru_cache(maxsize=256)
def layout_work(layout: str, mask: Band, local: int, keys: int, world: int, machine: Machine) -> LayoutWork:
    """local, keys: how many queries and keys each rank has, both even."""
    rule = find_layout(layout)

    def work(rank: int, source: int) -> Work:
        step = make_step(rule, mask, local * world, keys * world, world, rank, source)
        return step_work(step.tiles, machine)

    def earlier(hop: int) -> Work:
        return max(work(hop, 0), work(world - 1, world - 1 - hop), key=_length)

    def later(hop: int) -> Work:
        return max(work(0, world - hop), work(hop - 1, world - 1), key=_length)

    own = max((work(rank, rank) for rank in {0, world // 2, world - 1}), key=_length)
    pairs = zip(_expand(earlier, 1, world - 1), _expand(later, 1, world - 1), strict=True)
    longest = [max(pair, key=_length) for pair in pairs]
    while longest and longest[-1] == Work():
        longest.pop()
    others = tuple((each, len(list(run))) for each, run in groupby(longest))
    whole = make_step(find_layout("contiguous"), mask, local * world, keys * world, 1, 0, 0)
    return LayoutWork(own, others, sum(tile.area for tile in whole.tiles))


def _length(work: Work) -> tuple[float, int]:
    return work.cost, work.queries


def _expand(find: Callable[[int], Work], first: int, last: int) -> list[Work]:
    """`find` of first … last, where it never falls or never rises."""
    return [] if last < first else list(_between(find, first, find(first), last, find(last)))


def _between(find: Callable[[int], Work], first: int, low: Work, last: int, high: Work) -> Iterator[Work]:
    if low == high:
        yield from (low for _ in range(first, last + 1))
    elif last - first == 1:
        yield low
        yield high
    else:
        middle = (first + last) // 2
        found = find(middle)
        *before, _ = _between(find, first, low, middle, found)
        yield from before
        yield from _between(find, middle, found, last, high)


def step_work(tiles: Iterable[Tile], machine: Machine) -> Work:
    return sum((_tile_work(tile, machine) for tile in tiles), Work())


def _tile_work(tile: Tile, machine: Machine) -> Work:
    cost = computed_pairs(tile, *machine.tile) / (1.0 if tile.kind == "full" else machine.banded)
    return Work(tile.area, cost, tile.q1 - tile.q0, tile.k1 - tile.k0)


def computed_pairs(tile: Tile, rows: int, columns: int) -> int:
    """The pairs that a kernel computes which skips nothing within its own tiles of rows × columns.

    causal, 4 × 4, tiles of 2 × 2     x x . .
                                      x x . .
                                      x x x x
                                      x x x x"""
    if tile.kind == "full" or rows == columns == 1:
        return tile.area
    height = tile.q1 - tile.q0
    return sum(_row_of_tiles(tile, x, min(x + rows, height), columns) for x in range(0, height, rows))


def _row_of_tiles(tile: Tile, x0: int, x1: int, columns: int) -> int:
    width = tile.k1 - tile.k0
    first = 0 if tile.lower is None else max(0, x0 + tile.lower) // columns * columns
    last = width if tile.upper is None else min(width, -(-(x1 + tile.upper) // columns) * columns)
    return (x1 - x0) * (last - first)
