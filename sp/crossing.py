"""Crossings: which rows of a sender's part are which rows of a receiver's, whatever layouts deal them.  No torch here.

    9 tokens, 3 ranks     rank 0     rank 1     rank 2
    contiguous            0 1 2      3 4 5      6 7 8
    striped               0 3 6      1 4 7      2 5 8
    rank 0 → rank 1       rows 1:2 of what rank 0 has (token 1) are rows 0:1 of what rank 1 shall have

A value may cover a stretch of the sequence alone, and each of its positions may become another, so many further on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from sp.layout import Run, find_layout

Rows = tuple[slice, slice]  # rows of the sender's part, and as many of the receiver's


@dataclass(frozen=True)
class Part:
    """What the ranks hold of a value: the positions `start … start+length-1` of `total`, as a layout deals them."""

    layout: str
    start: int
    length: int
    total: int

    def held(self, rank: int, world: int) -> Iterator[tuple[int, Run]]:
        """What `rank` has as runs, each with the row at which it begins."""
        row = 0
        for run in find_layout(self.layout).runs(self.total, rank, world):
            skipped, count = run.count_below(self.start), run.count_below(self.start + self.length)
            if count > skipped:
                yield row, Run(run.start + skipped * run.stride, run.stride, count - skipped)
            row += count - skipped


@lru_cache(maxsize=4096)
def crossings(old: Part, new: Part, offset: int, world: int, sender: int, receiver: int) -> tuple[Rows, ...]:
    """Which rows of the sender's part of `old` are which of the receiver's part of `new`, where position p of the old
    one is position p + offset of the new one.  In the order of both."""
    found: list[Rows] = []
    theirs = [*new.held(receiver, world)]
    ends = [_end(run) for _, run in theirs]
    for first, run in old.held(sender, world):
        mine = Run(run.start + offset, run.stride, run.length)
        # Positions ascend, so that those that this run may meet stand next to each other.
        for second, other in theirs[bisect_right(ends, mine.start) :]:
            if other.start >= _end(mine):
                break
            if common := meet(mine, other):
                found.append((_rows(mine, common, first), _rows(other, common, second)))
    return tuple(found)


def meet(a: Run, b: Run) -> Run | None:
    """The positions that two runs share, if any: those congruent to both starts, every lcm of the strides."""
    common = gcd(a.stride, b.stride)
    steps, rest = divmod(b.start - a.start, common)
    if rest:
        return None
    stride = a.stride // common * b.stride
    place = steps * pow(a.stride // common, -1, b.stride // common) % (b.stride // common)
    first = a.start + a.stride * place  # the least that is congruent and not below a's
    first += max(0, -((first - b.start) // stride)) * stride
    count = (min(a.positions[-1], b.positions[-1]) - first) // stride + 1
    return Run(first, stride, count) if count > 0 else None


def _rows(run: Run, common: Run, begin: int) -> slice:
    """Where, of a run that begins at row `begin`, the positions are that it shares."""
    step = common.stride // run.stride
    start = begin + (common.start - run.start) // run.stride
    return slice(start, start + step * (common.length - 1) + 1, step)


def count_rows(rows: slice) -> int:
    return len(range(rows.start, rows.stop, rows.step or 1))


def unpacked(pieces: Iterable[Rows]) -> Iterator[Rows]:
    """Where pieces lie in a buffer that has carried them one after another, and the receiver's rows."""
    begin = 0
    for _, rows_to in pieces:
        count = count_rows(rows_to)
        yield slice(begin, begin + count), rows_to
        begin += count


def _end(run: Run) -> int:
    """The first position that would come after its last."""
    return run.start + run.stride * run.length
