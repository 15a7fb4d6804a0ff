"""How a tile is cut into pieces that FlashAttention on CPU knows.  Integers only.

FlashAttention computes whole rectangles and squares with a diagonal, aligned at their first row and column.  Every
band with one bound is made of those:

    upper only     lower only
    f f c . .      f f f f f      f  full
    f f c c .      f f f f f      c  causal, x sees y <= x
    f f c c c      a a a f f      a  anticausal, x sees y >= x
    f f f f f      . a a f f
    f f f f f      . . a f f

Pieces are tiles again, and their shape follows from their bounds (`shape`).  A band with two bounds is cut into short
blocks of rows, each computed whole under a mask: it costs its own area and a block of columns more.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from sp.tile import Tile, trim, within

Shape = Literal["full", "causal", "anticausal", "band"]

# A block has at most BLOCK rows; fewer than LEAST cost more than the columns that they spare.  Measured, bands of 64 to
# 4096 columns.
BLOCK = 256
LEAST = 64


def shape(piece: Tile) -> Shape:
    """What it is to FlashAttention: full, causal, anticausal (both square), or a band, for which it needs a mask."""
    square = piece.q1 - piece.q0 == piece.k1 - piece.k0
    match piece.lower, piece.upper:
        case None, None:
            return "full"
        case None, 0 if square:
            return "causal"
        case 0, None if square:
            return "anticausal"
        case _:
            return "band"


@lru_cache(maxsize=4096)
def cut(tile: Tile) -> tuple[Tile, ...]:
    """Pieces that cover each visible pair of a trimmed `tile` exactly once; at most three unless two sides bound it."""
    if tile.lower is None:
        return (tile,) if tile.upper is None else _cut_upper(tile, tile.upper)
    if tile.upper is None:
        return _cut_lower(tile, tile.lower)
    return blocks(tile, height(tile.upper - tile.lower + 1))


def height(width: int) -> int:
    """Rows of a block of a band under a mask.  A block has as many columns more than the band is wide: a quarter."""
    return max(LEAST, min(BLOCK, width // 4))


def blocks(tile: Tile, rows: int) -> tuple[Tile, ...]:
    """`tile` in blocks of at most `rows` rows, each with the columns that it sees; without rows that see nothing."""
    starts = range(tile.q0, tile.q1, rows)
    found = (within(tile, q0, min(q0 + rows, tile.q1), tile.k0, tile.k1) for q0 in starts)
    return tuple(block for block in found if block is not None)


def _cut_upper(tile: Tile, upper: int) -> tuple[Tile, ...]:
    """Full left of the diagonal's square and below it."""
    column = tile.k0 + upper  # where the diagonal starts
    row = tile.q0 + tile.k1 - column  # the first row that sees everything
    square = Tile(tile.q0, row, column, tile.k1, None, 0)
    return _filled(square, Tile(tile.q0, row, tile.k0, column), Tile(row, tile.q1, tile.k0, tile.k1))


def _cut_lower(tile: Tile, lower: int) -> tuple[Tile, ...]:
    """The same, turned by half a circle."""
    row = tile.q0 - lower  # where the diagonal starts
    column = tile.k0 + tile.q1 - row  # the first column that is seen by all
    square = Tile(row, tile.q1, tile.k0, column, 0, None)
    return _filled(square, Tile(row, tile.q1, column, tile.k1), Tile(tile.q0, row, tile.k0, tile.k1))


def _filled(square: Tile, *full: Tile) -> tuple[Tile, ...]:
    return (_trimmed(square), *(tile for tile in full if tile.q0 < tile.q1 and tile.k0 < tile.k1))


def _trimmed(tile: Tile) -> Tile:
    trimmed = trim(tile)
    assert trimmed is not None, f"{tile} of a trimmed tile sees nothing"
    return trimmed
