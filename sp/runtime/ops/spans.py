"""Spans: which stretch of the sequence a value covers, and where each rank's part of it lies.

The same formulas serve the kernels, where everything is an integer, and the fakes, where the lengths are symbolic.
Nothing here asks a question whose answer changes from one length to the next: that would be a recompilation.  (Only
where a span begins or ends inside the sequence, a rank with one token may get code of its own.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from sp.crossing import Part
from sp.layout import Run, find_layout
from sp.runtime.world import World, find_world


@dataclass(frozen=True)
class Span:
    """The positions `start … start+length-1` of a sequence of `total` positions that `layout` deals to `world`."""

    start: int
    length: int
    total: int
    layout: str
    world: World

    @property
    def part(self) -> Part:
        """The same for those who count rows."""
        return Part(self.layout, self.start, self.length, self.total)

    def local_range(self, rank: int) -> tuple[int, int]:
        """The local indices `(first, last + 1)` of this span in what `rank` holds of the whole sequence."""
        from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy, half a second

        start, stop = self.start, self.start + self.length
        # `Layout.local_range` recognises the ends of the sequence, and asks nothing about them.
        start = 0 if statically_known_true(start == 0) else start
        stop = self.total if statically_known_true(stop == self.total) else stop
        return find_layout(self.layout).local_range(self.total, rank, self.world.size, start, stop)

    def local_length(self, rank: int) -> int:
        """How many positions of this span `rank` holds; may be none."""
        first, stop = self.local_range(rank)
        return stop - first

    def runs(self, rank: int) -> Iterator[tuple[slice, slice]]:
        """Where the positions of `rank` lie: pairs of (rows of its part of this span, rows of the whole span)."""
        if not 0 <= self.start <= self.start + self.length <= self.total:
            raise AssertionError(f"{self} does not lie in its sequence")
        begin = 0
        for run in find_layout(self.layout).runs(self.total, rank, self.world.size):
            part = _clip(run, self.start, self.start + self.length)
            if part.length:
                yield slice(begin, begin + part.length), _rows(part, self.start)
            begin += part.length


def _clip(run: Run, start: int, stop: int) -> Run:
    """The positions of `run` from `start` up to, not including, `stop`."""
    first, last = run.count_below(start), run.count_below(stop)
    return Run(run.start + first * run.stride, run.stride, last - first)


def _rows(run: Run, start: int) -> slice:
    first = run.start - start
    return slice(first, first + run.stride * (run.length - 1) + 1, run.stride)


@dataclass(frozen=True)
class Place:
    """Where a value has which stretch of the sequence: the arguments that every placement op takes after its tensor.

    Dim `dim` of the value holds outer * n * inner elements, n of them positions of the span."""

    dim: int
    outer: int
    start: int
    length: int
    total: int
    layout: str
    group: str
    inner: int = 1

    @property
    def span(self) -> Span:
        return Span(self.start, self.length, self.total, self.layout, find_world(self.group))

    def shape(self, x: Tensor, n: int) -> list[int]:
        """The shape that `x` takes with n positions."""
        shape = list(x.shape)
        assert 0 <= self.dim < len(shape), f"no dim {self.dim} in {shape}"
        shape[self.dim] = self.outer * n * self.inner
        return shape

    def rows(self, x: Tensor, n: int) -> Tensor:
        """A view of `x` with a row for each of its n positions: [n, …]."""
        assert list(x.shape) == self.shape(x, n), (
            f"dim {self.dim} of {list(x.shape)} is not {self.outer} * {n} positions * {self.inner}"
        )
        return x.unflatten(self.dim, (self.outer, n, self.inner)).movedim(self.dim + 1, 0)
