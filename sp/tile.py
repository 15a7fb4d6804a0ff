"""Tiles: rectangles of one attention, cut by a band.  Integers only; importing this file imports no torch."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import combinations

BLOCK = 256  # rows that kernels like to work on together


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


def halves(tiles: tuple[Tile, ...]) -> tuple[tuple[Tile, ...], tuple[Tile, ...]]:
    """The tiles of the first half of the work, and of the second; at most one tile is cut in two, between queries."""
    half, before = sum(tile.area for tile in tiles) // 2, 0
    for place, tile in enumerate(tiles):
        if before + tile.area > half:
            row = _row_at(tile, half - before)
            above, below = (
                tuple(part for part in (within(tile, *rows, tile.k0, tile.k1),) if part)
                for rows in ((tile.q0, row), (row, tile.q1))
            )
            return (*tiles[:place], *above), (*below, *tiles[place + 1 :])
        before += tile.area
    return (), tiles


def _row_at(tile: Tile, area: int) -> int:
    """The query above which a tile has about this area; a multiple of the kernels' blocks where there are several."""
    row = bisect_left(range(tile.q0, tile.q1), area, key=lambda row: _area_above(tile, row)) + tile.q0
    return row if tile.q1 - tile.q0 < 2 * BLOCK else tile.q0 + round((row - tile.q0) / BLOCK) * BLOCK


def _area_above(tile: Tile, row: int) -> int:
    part = within(tile, tile.q0, row, tile.k0, tile.k1)
    return part.area if part else 0


def join(tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """Join tiles until no group of them makes one: zigzag's causal + full + causal becomes one causal."""
    for count in range(len(tiles), 1, -1):
        for group in combinations(tiles, count):
            if one := joined(group):
                return join((one, *(tile for tile in tiles if tile not in group)))
    return tiles


def joined(tiles: tuple[Tile, ...]) -> Tile | None:
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


def _pairs_up_to(rows: int, columns: int, upper: int) -> int:
    """How many (x, y) of a rows × columns grid have `y - x <= upper`."""
    first = max(0, min(rows, -upper))  # rows before it see nothing
    whole = max(first, min(rows, columns - 1 - upper))  # rows from it on see every column
    ramp = whole - first
    return ramp * (first + upper + 1) + ramp * (ramp - 1) // 2 + (rows - whole) * columns
