"""Cutting and joining whole tensors by a placement: index arithmetic on `Layout.positions`, without any process group.

The runtime cuts with runs and strides; this file knows neither, so that each can be held against the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from sp.layout import find_layout
from sp.passes.fxtools import shape, tensor
from sp.program import Placement, Sharded

Symbols = Mapping[object, int]


@dataclass(frozen=True)
class Spread:
    """A layout over `world` ranks, with the size symbols' values at one length."""

    layout: str
    world: int
    symbols: Symbols

    def __str__(self) -> str:
        return f"{self.layout} over {self.world} ranks"

    def number(self, size: object) -> int:
        """The value of a size expression."""
        value: Any = size.subs(self.symbols) if hasattr(size, "subs") else size  # type: ignore[attr-defined]
        return int(value)

    def offsets(self, placement: Sharded, rank: int) -> list[int]:
        """Where in the span of `placement` the positions of `rank` lie, ascending."""
        start, length, total = (self.number(size) for size in (placement.start, placement.length, placement.total))
        positions = find_layout(self.layout).positions(total, rank, self.world)
        return [position - start for position in positions if start <= position < start + length]

    def inner(self, whole: Tensor, placement: Sharded) -> int:
        """How many elements are merged behind the sequence in its dim."""
        size, held = whole.shape[placement.dim], self.number(placement.outer * placement.length)
        assert held > 0 == size % held, f"a dim of {size} elements cannot be {placement}: {held} positions"
        return size // held

    def cut(self, whole: Tensor, placement: Placement, rank: int) -> Tensor:
        """The part of `rank`; a replicated value is its own part."""
        if not isinstance(placement, Sharded):
            return whole
        inner = self.inner(whole, placement)
        return self._take(whole, placement, inner, self.offsets(placement, rank))

    def join(self, parts: Sequence[Tensor], placement: Sharded, inner: int) -> Tensor:
        """The whole of which `parts` are every rank's part."""
        dim = placement.dim
        order = [offset for rank in range(self.world) for offset in self.offsets(placement, rank)]
        whole = torch.cat([self._parted(part, placement, inner) for part in parts], dim + 1)
        index = torch.tensor(order, dtype=torch.int64).argsort()
        return whole.index_select(dim + 1, index).flatten(dim, dim + 2)

    def narrow(self, part: Tensor, before: Sharded, after: Sharded, rank: int, inner: int) -> Tensor:
        """What stays of a part when its span shrinks."""
        shift = self.number(after.start - before.start)
        kept = {offset + shift for offset in self.offsets(after, rank)}
        rows = [row for row, offset in enumerate(self.offsets(before, rank)) if offset in kept]
        return self._take(part, before, inner, rows)

    def _take(self, x: Tensor, placement: Sharded, inner: int, rows: list[int]) -> Tensor:
        index, dim = torch.tensor(rows, dtype=torch.int64), placement.dim
        return self._parted(x, placement, inner).index_select(dim + 1, index).flatten(dim, dim + 2)

    def _parted(self, x: Tensor, placement: Sharded, inner: int) -> Tensor:
        """[… outer*n*inner …] as [… outer, n, inner …]."""
        return x.unflatten(placement.dim, (self.number(placement.outer), -1, inner))


def symbols_of(graph: fx.Graph, inputs: Sequence[Tensor]) -> dict[object, int]:
    """The values of the captured size symbols, read from the inputs."""
    found: dict[object, int] = {}
    for node, given in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        if tensor(node) is not None:
            found.update({size: n for size, n in zip(shape(node), given.shape, strict=True) if size.is_Symbol})
    return found
