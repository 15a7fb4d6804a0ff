"""How a tile is cut into pieces that FlashAttention knows.  Integers only.

FlashAttention computes whole rectangles and squares with a diagonal, aligned at their first row and column.  Every
band is made of those:

    upper only     lower only     both, in blocks of rows no longer than the band is wide
    f f c . .      f f f f f      a f f c . . . .
    f f c c .      f f f f f      . a f c c . . .          f  full
    f f c c c      a a a f f      . . a c c c . .          c  causal, x sees y <= x
    f f f f f      . a a f f      . . . a f f c .          a  anticausal, x sees y >= x
    f f f f f      . . a f f      . . . . a f c c

Pieces are tiles again, and their shape follows from their bounds (`shape`).  Where FlashAttention takes a mask beside
(`masks`: on CPU), a band with two bounds is cut into short blocks of rows, each computed whole under a mask: it costs
its own area and a block of columns more.  Elsewhere a band too narrow for triangles is cut like that for the dense
kernel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from sp.tile import Tile, trim, within

Shape = Literal["full", "causal", "anticausal", "band"]

# Without masks: a band narrower than NARROW goes to the dense kernel, in blocks of BLOCK rows.  In wider ones the two
# triangles of a block, which no kernel skips at this size, are a quarter of the band each.
NARROW = 512
BLOCK = 256
# Under masks, blocks of fewer rows cost more than the columns that they spare.  Measured on CPU, bands of 64 to 4096.
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
def cut(tile: Tile, masks: bool = False) -> tuple[Tile, ...]:
    """Pieces that cover each visible pair of a trimmed `tile` exactly once; at most three unless two sides bound it."""
    if tile.lower is None:
        return (tile,) if tile.upper is None else _cut_upper(tile, tile.upper)
    if tile.upper is None:
        return _cut_lower(tile, tile.lower)
    width = tile.upper - tile.lower + 1
    return blocks(tile, height(width)) if masks else _cut_both(tile, width)


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


def _cut_both(tile: Tile, width: int) -> tuple[Tile, ...]:
    pieces: list[Tile] = []
    for block in blocks(tile, BLOCK if width < NARROW else max(BLOCK, width // 4)):
        if block.lower is None or block.upper is None:
            pieces += cut(block)
        elif width < NARROW:
            pieces.append(block)
        else:
            pieces += _cut_block(block, block.lower)
    return tuple(pieces)


def _cut_block(block: Tile, lower: int) -> tuple[Tile, ...]:
    """Left of `column` only the lower bound matters, from it on only the upper: the block is shorter than its band."""
    column = block.k0 + lower + block.q1 - block.q0
    left = _part(block, block.q0, block.q1, block.k0, column)
    right = _part(block, block.q0, block.q1, column, block.k1)
    return (*cut(left), *cut(right))


def _part(tile: Tile, q0: int, q1: int, k0: int, k1: int) -> Tile:
    """The part of `tile` in the given rows and columns."""
    found = within(tile, q0, q1, k0, k1)
    assert found is not None, f"{tile} of a trimmed tile sees nothing in q[{q0}:{q1}] k[{k0}:{k1}]"
    return found


def _trimmed(tile: Tile) -> Tile:
    trimmed = trim(tile)
    assert trimmed is not None, f"{tile} of a trimmed tile sees nothing"
    return trimmed
