"""Lift: operands of an attention, however many dims lie before its queries and keys → [batch, heads, …, …].

    [S, T]              →  [1, 1, S, T]
    [B*H, S, T]         →  [B, H, S, T]         of bmm; H as the graph's own views have it
    [B, G, n, S, T]     →  [B, G*n, S, T]       grouped heads

What is computed from scores element by element is computed anew from lifted operands, so that a mask or bias stays as
small as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import sympy
import torch
from torch import fx
from torch.fx.node import map_arg

from sp.passes.builder import Builder
from sp.passes.fxtools import exact_quotient, op_name, positional, product, same_size, shape, tensor
from sp.passes.rules import Refused
from sp.passes.scored import is_elementwise

aten = torch.ops.aten
_MERGES = ("aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.unsqueeze", "aten.squeeze")
_COPIES = ("aten.contiguous", "aten.clone", "aten.alias")
Sizes = tuple[sympy.Expr, ...]


@dataclass
class Lift:
    """batch, heads: the dims of the frame.  known: values that have been lifted, each once."""

    build: Builder
    batch: sympy.Expr
    heads: sympy.Expr
    known: dict[fx.Node, fx.Node] = field(default_factory=dict[fx.Node, fx.Node])

    def operand(self, node: fx.Node, outer: Sizes) -> fx.Node:
        """A query, key or value with dims [*outer, S, D], or fewer or size 1 where it broadcasts: all four dims.

        A head for all query heads stays one."""
        sizes = shape(node)[:-2]
        if len(outer) == 1 and sizes != outer:
            node = self.build(aten.expand.default, node, self._sizes((*outer, *shape(node)[-2:])))
        if len(outer) > 2:
            node, sizes = self._repeated(node, outer)
        if len(outer) == 1:
            return self._view(node, (self.batch, self.heads))
        for _ in range(2 - len(sizes)):
            node = self.build(aten.unsqueeze.default, node, 0)
        if not same_size(shape(node)[0], self.batch):
            node = self.build(aten.expand.default, node, self._sizes((self.batch, *shape(node)[1:])))
        return node

    def all_heads(self, node: fx.Node) -> fx.Node:
        """One head for all becomes one for each."""
        if same_size(shape(node)[1], self.heads):
            return node
        return self.build(aten.expand.default, node, self._sizes((shape(node)[0], self.heads, *shape(node)[2:])))

    def _repeated(self, node: fx.Node, outer: Sizes) -> tuple[fx.Node, Sizes]:
        """[B, G, n or 1, S, D] with the dims of heads merged, written as models repeat keys for their query heads."""
        for _ in range(len(outer) - len(shape(node)[:-2])):
            node = self.build(aten.unsqueeze.default, node, 0)
        sizes = shape(node)
        if sizes[1:-2] != outer[1:]:
            if len(outer) == 3 and sizes[1] == outer[1]:
                bare = self.build(aten.squeeze.dim, node, 2)
                node = self.build(aten.unsqueeze.default, bare, 2)
            node = self.build(aten.expand.default, node, self._sizes((sizes[0], *outer[1:], *sizes[-2:])))
        return self._view(node, (sizes[0], self.heads)), (sizes[0], self.heads)

    def scores(self, node: fx.Node, path: frozenset[fx.Node], outer: Sizes) -> fx.Node:
        """A value of sequence × sequence with `outer` dims before (or one that broadcasts to it), in the frame.

        path: the values that depend on the product of queries and keys.  Raises Refused where they are reshaped."""
        if node not in self.known:
            self.known[node] = self._scores(node, path, outer)
        return self.known[node]

    def _scores(self, node: fx.Node, path: frozenset[fx.Node], outer: Sizes) -> fx.Node:
        sizes = shape(node)
        if op_name(node) in _MERGES and (node in path or self._is_ours(node)):
            source = cast(fx.Node, node.args[0])
            split = self._splits_alike(source)
            if split and self._is_ours(source) and self._is_ours(node) and _tails(source) == _tails(node):
                return self.scores(source, path, shape(source)[:-2])
        if node in path and op_name(node) in _MERGES:
            raise Refused(
                f"its scores are reshaped by {node.name} from {shape(cast(fx.Node, node.args[0]))} to {sizes}", _FOUR
            )
        fits = len(sizes) < 3 or (len(outer) < 3 and all(size == 1 for size in sizes[:-2]))
        fits = fits or (len(outer) == 2 and node not in path)
        if fits and node not in path:
            return node
        if node in path or (self._is_ours(node) and _is_recomputable(node)):
            return self._again(node, path)
        return self._frame(node, outer)

    def _again(self, node: fx.Node, path: frozenset[fx.Node]) -> fx.Node:
        """The same op on lifted operands."""
        outer = shape(node)[:-2]

        def lifted(operand: fx.Node) -> fx.Node:
            return self.scores(operand, path, outer) if tensor(operand) is not None else operand

        if op_name(node) == "aten.expand":
            return lifted(cast(fx.Node, node.args[0]))  # it broadcasts by itself
        args, kwargs = map_arg(node.args, lifted), map_arg(node.kwargs, lifted)
        return self.build(cast(torch._ops.OpOverload, node.target), *args, **kwargs)

    def _frame(self, node: fx.Node, outer: Sizes) -> fx.Node:
        """A mask or bias [*outer, ·, ·] that stays one value."""
        sizes = shape(node)[:-2]
        if (one := self._tiled(node)) is not None:
            return self._view(one, (sympy.Integer(1), self.heads))
        if len(outer) < 3:
            return self._view(node, (self.batch, self.heads))
        padded = (*(sympy.Integer(1),) * (len(outer) - len(sizes)), *sizes)
        if all(size == 1 for size in padded[1:]):
            return self._view(node, (padded[0], sympy.Integer(1)))
        whole = self._sizes((padded[0], *outer[1:], *shape(node)[-2:]))
        return self._view(self.build(aten.expand.default, node, whole), (padded[0], self.heads))

    def _tiled(self, node: fx.Node) -> fx.Node | None:
        """[H, ·, ·], which `node` repeats for each of the batch: ALiBi's slopes times positions, as Bloom has it."""
        if op_name(node) != "aten.repeat":
            return None
        source, counts = cast("tuple[fx.Node, list[object]]", positional(node))
        one_each = all(count == 1 for count in counts[1:]) and len(counts) == len(shape(source)) == 3
        return source if one_each and same_size(shape(source)[0], self.heads) else None

    def lowered(self, node: fx.Node, outer: Sizes) -> fx.Node:
        """The result [B, H, S, D] with the dims that the model gave it."""
        return node if len(outer) == 2 else self._view(node, outer)

    def _is_ours(self, node: fx.Node) -> bool:
        """Whether its outer dims are batch and heads, merged or not."""
        outer = shape(node)[:-2]
        return bool(outer) and same_size(product(outer), self.batch * self.heads)

    def _splits_alike(self, node: fx.Node) -> bool:
        """Whether two outer dims are batch and heads, rather than others of the same product."""
        outer = shape(node)[:-2]
        return len(outer) != 2 or all(map(same_size, outer, (self.batch, self.heads)))

    def _view(self, node: fx.Node, outer: Sequence[sympy.Expr]) -> fx.Node:
        sizes = (*outer, *shape(node)[-2:])
        return node if sizes == shape(node) else self.build(aten.reshape.default, node, self._sizes(sizes))

    def _sizes(self, sizes: Sequence[sympy.Expr]) -> list[fx.Node | int]:
        return [self.build.size(size) for size in sizes]


_FOUR = "keep scores as [batch, heads, queries, keys] or [batch * heads, queries, keys]"


def _tails(node: fx.Node) -> Sizes:
    return shape(node)[-2:]


def _is_recomputable(node: fx.Node) -> bool:
    return op_name(node) in (*_COPIES, "aten.expand") or is_elementwise(node)


def split(outer: Sizes, nodes: Sequence[fx.Node]) -> tuple[sympy.Expr, sympy.Expr]:
    """Batch and heads of dims before queries and keys.  nodes: where the graph itself may have split them."""
    one = sympy.Integer(1)
    if len(outer) != 1:
        return (outer[0], product(outer[1:])) if outer else (one, one)
    (merged,) = outer
    for node in nodes:
        sizes = shape(node)[:-2] if tensor(node) is not None else ()
        if len(sizes) == 2 and same_size(product(sizes), merged):
            return sizes[0], sizes[1]
    factor, rest = merged.as_coeff_Mul()
    if rest == 1:
        return one, merged
    quotient = exact_quotient(merged, rest)
    return (rest, factor) if quotient is not None else (merged, one)
