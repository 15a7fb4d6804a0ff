"""Covers: the tiles that make up what the queries of one rank see of the keys of one.  Integers only, no torch.

Two runs of one stride make one tile (`sp.plan`); a few runs are tried pair by pair, and joined where tiles make one.
Wider stripes (`striped:64`) are many runs: then each run of queries is one row, which sees a stretch of keys in whole
and at its ends some in part.  The stretches are a staircase.  What all rows of its lower half see is one rectangle, and
what is left of each half is a staircase again; so most of the work is in few large tiles:

    stripe 0    c . . .        causal, 4 stripes of queries against 4 of keys of an earlier rank, tiles a to d
    stripe 1    b b . .
    stripe 2    a a a .
    stripe 3    a a a d
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from sp.layout import Run
from sp.mask import Band
from sp.tile import Tile, join, joined, trim

_FEW = 2  # runs


def cover(queries: tuple[Run, ...], keys: tuple[Run, ...], mask: Band) -> tuple[Tile, ...]:
    """Tiles over local queries and keys in which every visible pair is once.  Those with most work come first."""
    if max(len(queries), len(keys)) <= _FEW:
        return join(tuple(_pairwise(queries, keys, mask)))
    rows: list[_Row] = []
    ends: list[Tile] = []
    for part in _row_by_row(queries, keys, mask):
        rows.append(part) if isinstance(part, _Row) else ends.append(part)
    tiles = (*_stairs(rows), *ends)
    one = joined(tiles) if tiles else None
    return (one,) if one else tuple(sorted(tiles, key=lambda tile: -tile.area))


def meets(queries: tuple[Run, ...], keys: tuple[Run, ...], mask: Band) -> bool:
    """Whether any query sees any key."""
    few = max(len(queries), len(keys)) <= _FEW
    return any(True for _ in (_pairwise if few else _row_by_row)(queries, keys, mask))


@dataclass(frozen=True)
class _Row:
    """Queries q0:q1 see the keys k0:k1, all of them."""

    q0: int
    q1: int
    k0: int
    k1: int


def _pairwise(queries: tuple[Run, ...], keys: tuple[Run, ...], mask: Band) -> Iterator[Tile]:
    found = (_tile(q, q0, k, k0, mask) for q, q0 in _placed(queries) for k, k0 in _placed(keys))
    return (tile for tile in found if tile is not None)


def _row_by_row(queries: tuple[Run, ...], keys: tuple[Run, ...], mask: Band) -> Iterator[_Row | Tile]:
    """Of each run of queries the keys that all of them see, and tiles at the ends; in time of its runs, not of all."""
    held = [(k, k0) for k, k0 in _placed(keys) if k.length]
    firsts, lasts = [k.start for k, _ in held], [k.positions[-1] for k, _ in held]
    for q, q0 in _placed(queries):
        if not q.length:
            continue
        first, last = q.start, q.positions[-1]
        begin = 0 if mask.left is None else bisect_left(lasts, first - mask.left)
        end = len(held) if mask.right is None else bisect_right(firsts, last + mask.right)
        whole = 0 if mask.left is None else bisect_left(firsts, last - mask.left)
        stop = len(held) if mask.right is None else bisect_right(lasts, first + mask.right)
        if whole < stop:
            k, k0 = held[stop - 1]
            yield _Row(q0, q0 + q.length, held[whole][1], k0 + k.length)
        else:
            whole = stop = end
        for k, k0 in (*held[begin:whole], *held[stop:end]):
            tile = _tile(q, q0, k, k0, mask)
            if tile is not None:
                yield tile


def _stairs(rows: Sequence[_Row]) -> Iterator[Tile]:
    """Rectangles that cover rows whose stretches of keys begin and end the later the later the row."""
    rows = [row for row in rows if row.k0 < row.k1]
    if not rows:
        return
    if len({(row.k0, row.k1) for row in rows}) == 1 and _are_adjacent(rows):
        yield Tile(rows[0].q0, rows[-1].q1, rows[0].k0, rows[0].k1)
        return
    upper, lower = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    yield from _stairs(upper)
    k0, k1 = max(row.k0 for row in lower), min(row.k1 for row in lower)
    if k0 >= k1 or not _are_adjacent(lower):
        yield from _stairs(lower)
        return
    yield Tile(lower[0].q0, lower[-1].q1, k0, k1)
    yield from _stairs([_Row(row.q0, row.q1, row.k0, k0) for row in lower])
    yield from _stairs([_Row(row.q0, row.q1, k1, row.k1) for row in lower])


def _are_adjacent(rows: Sequence[_Row]) -> bool:
    return rows[-1].q1 - rows[0].q0 == sum(row.q1 - row.q0 for row in rows)


def _placed(runs: tuple[Run, ...]) -> Iterator[tuple[Run, int]]:
    """Each run with the local index at which it begins."""
    return zip(runs, accumulate((run.length for run in runs), initial=0), strict=False)


def _tile(q: Run, q0: int, k: Run, k0: int, mask: Band) -> Tile | None:
    assert q.stride == k.stride, "runs of one layout share their stride"
    shift, stride = k.start - q.start, q.stride
    lower = None if mask.left is None else -((mask.left + shift) // stride)
    upper = None if mask.right is None else (mask.right - shift) // stride
    return trim(Tile(q0, q0 + q.length, k0, k0 + k.length, lower, upper))
