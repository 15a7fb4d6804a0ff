"""Lookups in the functions of a flex_attention: tensors that they index by the four positions, or by what they compute.

doc[b, q_idx]            →  aten.unsqueeze(aten.unsqueeze(doc, 1), 3)       [B, 1, S, 1]       a view
table[q_idx - kv_idx]    →  aten.embedding(table, sub)                      of one column for all heads
table[h, clamp]          →  aten.embedding(tableT, clamp)                   heads are the columns
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from sp.passes.builder import Builder
from sp.passes.fxtools import same_size, shape
from sp.passes.rules import Refused

aten = torch.ops.aten
_HEADS = 1
USE_FUNCTIONS = "write score_mod and mask_mod with ops that work element by element, and tensors indexed by position"


@dataclass(frozen=True)
class Lookups:
    """positions: batch, head, query and key as tensors that broadcast to [B, H, S, T]."""

    build: Builder
    positions: tuple[fx.Node, ...]

    def find(self, table: fx.Node, indices: Sequence[object]) -> fx.Node:
        """`table[indices]`, which broadcasts to [B, H, S, T].  Raises Refused for slices and truth values."""
        if not all(isinstance(index, fx.Node) for index in indices) or len(indices) != len(shape(table)):
            raise Refused(f"its function indexes {table} other than by one number for each dim", USE_FUNCTIONS)
        nodes = cast(Sequence[fx.Node], indices)
        axes = [self.positions.index(index) if index in self.positions else None for index in nodes]
        if None not in axes and len(set(axes)) == len(axes):
            return self._shown(table, cast(list[int], axes))
        if table.meta["val"].is_floating_point() and axes in ([None], [_HEADS, None]):
            return self._columns(table, nodes[-1])
        return self.build(aten.index.Tensor, table, list(nodes))

    def _shown(self, table: fx.Node, axes: list[int]) -> fx.Node:
        """A view: the first positions of each dim, in the order of the axes."""
        for dim, axis in enumerate(axes):
            size = shape(self.positions[axis])[axis]
            if not same_size(shape(table)[dim], size):
                table = self.build(aten.slice.Tensor, table, dim, 0, self.build.size(size))
        if axes != sorted(axes):
            table = self.build(aten.permute.default, table, [axes.index(axis) for axis in sorted(axes)])
        for axis in (axis for axis in range(4) if axis not in axes):
            table = self.build(aten.unsqueeze.default, table, axis)
        return table

    def _columns(self, table: fx.Node, index: fx.Node) -> fx.Node:
        """One row for each index [·, 1, ·, ·], whose columns are the heads or one for all of them."""
        if len(shape(index)) != 4 or shape(index)[_HEADS] != 1:
            raise Refused(f"its function looks up {table} by an index that differs from head to head", USE_FUNCTIONS)
        of_heads = len(shape(table)) == 2
        rows = self.build(aten.t.default, table) if of_heads else self.build(aten.unsqueeze.default, table, 1)
        found = self.build(aten.embedding.default, rows, self.build(aten.squeeze.dim, index, _HEADS))
        return self.build(aten.permute.default, found, [0, 3, 1, 2])
