"""What a rank computes in a step, from the plan: the pairs that count, and those that a kernel computes for them.

A world of two is as good as any.  When each rank holds the same even number of tokens, a step depends on one thing
only: whether the keys are the rank's own, those of an earlier rank or those of a later one.

             own        from an earlier rank   from a later rank
contiguous   causal     full                   nothing
striped      causal     causal                 causal without the diagonal
zigzag       causal     full k[:half]          full q[half:]

The plans of the two ranks of a world of two hold all three, and in every step but the first of a larger world some
rank has keys from an earlier one and some rank from a later one.  So the critical path of any world is its own step
and world - 1 times the longer of the other two; tests hold that against the plans of every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sp.costs.machine import Machine
from sp.mask import Band
from sp.plan import Tile, make_plan


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
    """The three kinds of step.  local: tokens of a rank."""

    local: int
    own: Work
    earlier: Work
    later: Work

    @property
    def longer(self) -> Work:
        """Of the steps but the first, the one that others wait for."""
        return max(self.earlier, self.later, key=lambda work: (work.cost, work.queries))

    def critical(self, world: int) -> Work:
        """All steps, each as long as for the rank that has most to do in it."""
        return self.own + self.longer * (world - 1)

    def total(self, world: int) -> int:
        """The pairs of all ranks."""
        return world * self.own.pairs + (self.earlier.pairs + self.later.pairs) * world * (world - 1) // 2


def layout_work(layout: str, mask: Band, local: int, machine: Machine) -> LayoutWork:
    """mask: full or causal.  local: even."""
    first, last = (make_plan(layout, mask, 2 * local, 2, rank).steps for rank in range(2))
    own, later, earlier = (step_work(step.tiles, machine) for step in (first[0], first[1], last[1]))
    return LayoutWork(local, own, earlier, later)


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
