"""From blocks to pieces: neighbouring blocks of one kind become one rectangle.  Bytes and integers only.

    o m h . . .        o open: the score changes nothing        o o . .
    o o m . . .        m mixed: the score must be evaluated     h h o .    two documents under a causal band:
    h h o o . .        h hidden by the score: skipped           h h o o    one piece, m, one piece
    h h m o m .        . not seen by the band

What the band hides may belong to any rectangle, since a piece keeps the band: so a band without any score stays one
tile, and a document under a causal band is one piece.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sp.tile import Tile, within

OPEN, MIXED, HIDDEN, HIDDEN_SOFTLY, UNSEEN = b"omhs."
# A score is evaluated on pieces that are at most so wide and, with the rows, so large.
_COLUMNS, _PAIRS = 2048, 256 * 2048
_SEGMENTS = {OPEN: re.compile(rb"[o.]*o[o.]*"), MIXED: re.compile(rb"[m.]*m[m.]*")}


@dataclass(frozen=True)
class Blocks:
    """Verdicts over a grid: one string of letters for each block of rows.

    Row block n is the local queries `rows[n]:rows[n + 1]`, column block n the keys `columns[n]:columns[n + 1]`."""

    rows: Sequence[int]
    columns: Sequence[int]
    verdicts: Sequence[bytes]


@dataclass(frozen=True)
class _Rectangle:
    """Local queries `q0:q1` against the column blocks `first:last`, which could grow up to `least:most`."""

    kind: int
    q0: int
    q1: int
    first: int
    last: int
    least: int
    most: int

    def joined(self, below: _Rectangle) -> _Rectangle | None:
        """The one around this rectangle and one in the next block of rows; None if it holds blocks of another kind."""
        least, most = max(self.least, below.least), min(self.most, below.most)
        first, last = min(self.first, below.first), max(self.last, below.last)
        if self.kind != below.kind or first < least or last > most:
            return None
        return replace(self, q1=below.q1, first=first, last=last, least=least, most=most)


def cut_blocks(tile: Tile, blocks: Blocks) -> Iterator[tuple[Tile, bool]]:
    """Parts of the tile, each with whether it is mixed: all that the tile sees and no block hides, each pair once."""
    for rectangle in _rectangles(tile, blocks):
        k0, k1 = (max(tile.k0, blocks.columns[rectangle.first]), min(tile.k1, blocks.columns[rectangle.last]))
        mixed = rectangle.kind == MIXED
        width = min(k1 - k0, _COLUMNS) if mixed else k1 - k0
        height = max(_PAIRS // width, 1) if mixed else rectangle.q1 - rectangle.q0
        for q0 in range(rectangle.q0, rectangle.q1, height):
            for column in range(k0, k1, width):
                piece = within(tile, q0, min(q0 + height, rectangle.q1), column, min(column + width, k1))
                if piece is not None:
                    yield piece, mixed


def _rectangles(tile: Tile, blocks: Blocks) -> Iterator[_Rectangle]:
    """Joined from above to below."""
    growing: list[_Rectangle] = []
    for strip in _strips(tile, blocks):
        following: list[_Rectangle] = []
        for segment in strip:
            above, joined = next(((r, j) for r in growing if (j := r.joined(segment))), (None, segment))
            growing = [rectangle for rectangle in growing if rectangle is not above]
            following.append(joined)
        yield from growing
        growing = following
    yield from growing


def _strips(tile: Tile, blocks: Blocks) -> Iterator[list[_Rectangle]]:
    """For each block of rows in the tile, the longest rectangles of one kind in it."""
    begin, end = bisect_right(blocks.columns, tile.k0) - 1, bisect_left(blocks.columns, tile.k1)
    for row in range(bisect_right(blocks.rows, tile.q0) - 1, bisect_left(blocks.rows, tile.q1)):
        q0, q1 = max(tile.q0, blocks.rows[row]), min(tile.q1, blocks.rows[row + 1])
        seen = within(tile, q0, q1, tile.k0, tile.k1)
        assert seen is not None, f"each row of {tile} sees something"
        first, last = bisect_right(blocks.columns, seen.k0) - 1, bisect_left(blocks.columns, seen.k1)
        letters = bytes([UNSEEN]) * first + blocks.verdicts[row][first:last] + bytes([UNSEEN]) * (end - last)
        yield [
            _Rectangle(kind, q0, q1, *_core(letters, kind, *found.span()), *found.span())
            for kind, pattern in _SEGMENTS.items()
            for found in pattern.finditer(letters, begin, end)
        ]


def _core(letters: bytes, kind: int, first: int, last: int) -> tuple[int, int]:
    """From the first to the last block that is of the kind and not only unseen."""
    return letters.index(kind, first, last), letters.rindex(kind, first, last) + 1
