"""Layouts: which rank holds which token.  Integers only; importing this file imports no torch.

Most layouts give rank `r` one or two *runs* (arithmetic progressions of positions), written in the order in
which the rank stores them, which is ascending.  The formulas use nothing but `+ - * //`, so they hold for
symbolic lengths too.

    length=8, world=2    rank 0        rank 1
    contiguous           0 1 2 3       4 5 6 7
    striped              0 2 4 6       1 3 5 7        Brandon et al. 2023, section 3
    zigzag               0 1 6 7       2 3 4 5

Stripes may be wider than a token.  Then a rank has many runs; what does not fill a last round is cut evenly up to one:

    length=10, world=2   rank 0        rank 1
    striped:2            0 1 4 5 8     2 3 6 7 9      MTraining 2025, arXiv 2510.18830, has stripes of 64

Contiguous parts may be of any lengths, as those of a loader are: `contiguous:4,0,5` deals 9 tokens to 3 ranks.

A nested layout deals to groups of neighbours, who cut what their group holds into contiguous parts:

    length=12, world=4   rank 0        rank 1        rank 2        rank 3
    striped/2            0 2 4         6 8 10        1 3 5         7 9 11
    zigzag/2             0 1 2         9 10 11       3 4 5         6 7 8
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from sp.errors import StrategyError


@dataclass(frozen=True)
class Run:
    """The positions `start, start + stride, …`, `length` of them."""

    start: int
    stride: int
    length: int

    @property
    def positions(self) -> range:
        return range(self.start, self.start + self.stride * self.length, self.stride)

    def count_below(self, position: int) -> int:
        """How many positions of this run are smaller than `position`."""
        return min(max((position - self.start + self.stride - 1) // self.stride, 0), self.length)


@dataclass(frozen=True)
class Layout:
    """A rule that deals the positions `0 … length-1` to `world` ranks, evenly up to one token."""

    name: str
    deal: Callable[[int, int, int], tuple[Run, ...]]

    def runs(self, length: int, rank: int, world: int) -> tuple[Run, ...]:
        """The runs of `rank`, in local order."""
        return self.deal(length, rank, world)

    def local_length(self, length: int, rank: int, world: int) -> int:
        return sum(run.length for run in self.runs(length, rank, world))

    def positions(self, length: int, rank: int, world: int) -> list[int]:
        """The global position of each local token of `rank`."""
        return [position for run in self.runs(length, rank, world) for position in run.positions]

    def local_range(self, length: int, rank: int, world: int, start: int, stop: int) -> tuple[int, int]:
        """The local indices `(first, last + 1)` of the positions `start … stop-1`.

        Positions ascend along the local index, so the answer is always one range."""
        runs = self.runs(length, rank, world)
        # Not `count_below` where no comparison is needed: a symbolic length would pay with a guard.
        first = 0 if isinstance(start, int) and start == 0 else sum(run.count_below(start) for run in runs)
        whole = stop is length
        return first, sum(run.length if whole else run.count_below(stop) for run in runs)

    def nested(self, inner: int) -> Layout:
        """Itself, dealing to groups of `inner` neighbours."""
        return _Nested(f"{self.name}/{inner}", self.deal, self, inner)

    def nesting(self, world: int) -> tuple[Layout, int]:
        """How it deals to groups of neighbours, and how many ranks make one, whose parts joined are the group's."""
        return (self, world if self.deal is _contiguous else 1)


@dataclass(frozen=True)
class _Nested(Layout):
    """`base` deals to groups of `inner` neighbours; a group's tokens, in local order, are cut evenly up to one."""

    base: Layout
    inner: int

    def runs(self, length: int, rank: int, world: int) -> tuple[Run, ...]:
        runs = self.base.runs(length, rank // self.inner, world // self.inner)
        first, stop = self._share(length, rank, world)
        if len(runs) == 1:  # no comparison, see `local_range`
            return (Run(runs[0].start + first * runs[0].stride, runs[0].stride, stop - first),)
        cut: list[Run] = []
        for run in runs:
            here, there = (_clamp(index, run.length) for index in (first, stop))
            cut.append(Run(run.start + here * run.stride, run.stride, there - here))
            first, stop = first - run.length, stop - run.length
        return tuple(cut)

    def local_length(self, length: int, rank: int, world: int) -> int:
        first, stop = self._share(length, rank, world)
        return stop - first

    def local_range(self, length: int, rank: int, world: int, start: int, stop: int) -> tuple[int, int]:
        begin, end = self._share(length, rank, world)
        first, last = self.base.local_range(length, rank // self.inner, world // self.inner, start, stop)
        first = 0 if isinstance(start, int) and start == 0 else _clamp(first - begin, end - begin)
        return first, end - begin if stop is length else _clamp(last - begin, end - begin)

    def nesting(self, world: int) -> tuple[Layout, int]:
        return self.base, self.inner

    def _share(self, length: int, rank: int, world: int) -> tuple[int, int]:
        """Which of the tokens of its group a rank has: from, and up to."""
        if world % self.inner:
            raise AssertionError(f"{world} ranks are no groups of {self.inner}")
        group, place = rank // self.inner, rank % self.inner
        held = self.base.local_length(length, group, world // self.inner)
        return place * held // self.inner, (place + 1) * held // self.inner


@dataclass(frozen=True)
class _Blocks(Layout):
    """Stripes of `block` tokens.  Its runs are for numbers; the rest holds for symbols, and costs the same however many
    stripes there are."""

    block: int

    def local_length(self, length: int, rank: int, world: int) -> int:
        rounds, _, first, last = self._parts(length, rank, world)
        return rounds * self.block + last - first

    def local_range(self, length: int, rank: int, world: int, start: int, stop: int) -> tuple[int, int]:
        first = 0 if isinstance(start, int) and start == 0 else self._below(length, rank, world, start)
        whole = stop is length
        return first, self.local_length(length, rank, world) if whole else self._below(length, rank, world, stop)

    def nested(self, inner: int) -> Layout:
        raise StrategyError(
            f"the stripes of {self.name} cannot be cut for {inner} neighbours",
            needed="stripes of one token",
            remedy="striped",
        )

    def _below(self, length: int, rank: int, world: int, position: int) -> int:
        """How many tokens of this rank lie below a position."""
        rounds, end, first, last = self._parts(length, rank, world)
        if position < end:
            full = max(position // (self.block * world), 0)
            return full * self.block + _clamp(position - (full * world + rank) * self.block, self.block)
        return rounds * self.block + _clamp(position - first, last - first)

    def _parts(self, length: int, rank: int, world: int) -> tuple[int, int, int, int]:
        """How many rounds are full, and where the last one ends; from where up to where its part of the rest goes."""
        rounds = length // (self.block * world)
        end = rounds * self.block * world
        return rounds, end, end + rank * (length - end) // world, end + (rank + 1) * (length - end) // world


def _blocks(block: int, length: int, rank: int, world: int) -> tuple[Run, ...]:
    if world == 1:
        return (Run(0, 1, length),)
    rounds, end = length // (block * world), length // (block * world) * block * world
    first, last = (end + place * (length - end) // world for place in (rank, rank + 1))
    stripes = (Run((turn * world + rank) * block, 1, block) for turn in range(rounds))
    return (*stripes, Run(first, 1, last - first))


def _clamp(index: int, length: int) -> int:
    return min(max(index, 0), length)


def _contiguous(length: int, rank: int, world: int) -> tuple[Run, ...]:
    start, stop = rank * length // world, (rank + 1) * length // world
    return (Run(start, 1, stop - start),)


def contiguous_parts(lengths: Sequence[int]) -> str:
    """The name of the layout in which rank r holds `lengths[r]` tokens, in rank order."""
    return f"contiguous:{','.join(map(str, lengths))}"


def _parts(lengths: Sequence[int], length: int, rank: int, world: int) -> tuple[Run, ...]:
    if (sum(lengths), len(lengths)) != (length, world):
        raise AssertionError(f"{lengths} for {length} tokens on {world} ranks")
    return (Run(sum(lengths[:rank]), 1, lengths[rank]),)


def _striped(length: int, rank: int, world: int) -> tuple[Run, ...]:
    return (Run(rank, world, (length - rank + world - 1) // world),)


def _zigzag(length: int, rank: int, world: int) -> tuple[Run, ...]:
    # The shares are those of `contiguous`, each cut in two: of the first t tokens dealt, ceil(t/2) lie at the
    # front of the sequence and the rest at its end, so rank r holds chunks r and 2*world-1-r for any length.
    start, stop = rank * length // world, (rank + 1) * length // world
    first, second = (start + 1) // 2, length - stop // 2
    return (
        Run(first, 1, (stop + 1) // 2 - first),
        Run(second, 1, stop // 2 - start // 2),
    )


# Not to be chosen by a strategy: every rank holds everything, as it does of values without a sequence.
WHOLE = Layout("whole", lambda length, rank, world: (Run(0, 1, length),))

LAYOUTS = {
    layout.name: layout
    for layout in (Layout("contiguous", _contiguous), Layout("striped", _striped), Layout("zigzag", _zigzag))
}


@lru_cache(maxsize=1024)
def find_layout(name: str) -> Layout:
    """The layout called `name`, striped in blocks as `striped:64`, in parts of given lengths, or nested as `striped/2`.

    StrategyError lists the known ones."""
    base, nested, inner = name.rpartition("/")
    if nested and inner.isdecimal() and int(inner):
        return find_layout(base).nested(int(inner))
    base, wide, block = name.partition(":")
    if wide and base == "striped":
        return _find_blocks(name, block)
    if wide and base == "contiguous" and all(number.isdecimal() for number in block.split(",")):
        return Layout(name, partial(_parts, tuple(map(int, block.split(",")))))
    if name not in LAYOUTS:
        raise StrategyError(f"there is no layout {name!r}", needed=f"one of: {', '.join(sorted(LAYOUTS))}")
    return LAYOUTS[name]


def _find_blocks(name: str, block: str) -> Layout:
    if not block.isdecimal() or int(block) == 0:
        needed = "a number of tokens from 1 on behind the colon"
        raise StrategyError(f"{name!r} names no width of stripes", needed=needed, remedy="striped:64")
    width = int(block)
    return LAYOUTS["striped"] if width == 1 else _Blocks(name, partial(_blocks, width), width)
