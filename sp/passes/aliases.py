"""Aliases: which values of a graph share memory, and how a change of one is written back into the other.

    slice  = aten.slice(x, 1, 1, END)     a lens onto x:  read x → slice(x, 1, 1, END)
                                                          write v into x → where(position >= 1, v, x), or
                                                                           cat([slice(x, 1, 0, 1), v], 1)

Memory is compared by the storages of the traced fake tensors: torch itself has said there what is a view.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

from sp.passes.fxtools import expression, normal_dim, op_name, positional, shape, tensor
from sp.passes.normalize import IDENTITIES
from sp.passes.sizes import Sizes

aten = torch.ops.aten
END = torch.iinfo(torch.int64).max


class NoLensError(Exception):
    """There is no known way to write through this view."""


@dataclass(frozen=True)
class Span:
    """Positions `start … start + length - 1` of `dim`; of a select, which drops the dim, one."""

    dim: int
    start: sympy.Expr
    length: sympy.Expr
    drops: bool


def storages(node: fx.Node) -> frozenset[int]:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return frozenset(leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, torch.Tensor))


def parent_of(node: fx.Node) -> fx.Node | None:
    """The operand whose memory a value shares, None if it has its own.  Of one of several results, the op's operand."""
    if node.op != "call_function":
        return None
    if is_same(node):
        return cast(fx.Node, node.args[0])
    shared = [operand for operand in node.all_input_nodes if storages(operand) & storages(node)]
    if shared and node.target is operator.getitem and tensor(shared[0]) is None:  # one of several results
        shared = [operand for operand in shared[0].all_input_nodes if storages(operand) & storages(node)]
    return shared[0] if shared else None


def changes_in_place(node: fx.Node) -> bool:
    """Freshly made constants are detached in place, for nothing: `normalize` erases that."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    return op_name(node) != "aten.detach_" or not _of_constant(cast(fx.Node, node.args[0]))


def _of_constant(node: fx.Node) -> bool:
    return op_name(node) in _CONSTANTS or (op_name(node) == "aten.to" and _of_constant(cast(fx.Node, node.args[0])))


def is_same(node: fx.Node) -> bool:
    """Whether an op returns its operand itself.  (Dropout that does nothing is traced as a copy, and is none.)"""
    name = op_name(node)
    if not node.args or tensor(node.args[0]) is None or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target._schema.is_mutable:
        return name.endswith("_")
    test = IDENTITIES.get(name)
    if name.endswith("dropout") and test is not None:
        return test(node)
    return name in _KEEPS and storages(node) == storages(cast(fx.Node, node.args[0]))


_CONSTANTS = frozenset({"aten.lift_fresh_copy", "aten.scalar_tensor"})
_KEEPS = frozenset({"aten.to", "aten.contiguous", "aten.alias", "aten.lift_fresh", "aten.type_as", "aten.positive"})
_SHAPES = frozenset(
    f"aten.{name}"
    for name in ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as")
)
_TURNS = frozenset({"aten.transpose", "aten.permute", "aten.t", "aten.mT", "aten.numpy_T", "aten.swapaxes"})
_CUTS = frozenset({"aten.slice", "aten.narrow", "aten.select"})
_BROADCAST = "aten.broadcast_tensors"
_PARTS = frozenset({"aten.chunk", "aten.split", "aten.split_with_sizes", "aten.unsafe_chunk", "aten.unbind"})


def span_of(node: fx.Node) -> Span:
    """Which positions of its parent a slice, a select or a part of a split shows.  Raises NoLensError."""
    source = cast(fx.Node, node.args[0])
    if node.target is operator.getitem:
        return _part(source, cast(int, node.args[1]))
    _, dim, *rest = positional(node)
    sizes = shape(source)
    dim = normal_dim(dim, len(sizes))
    start = _from_front(rest[0], sizes[dim])
    if op_name(node) == "aten.select":
        return Span(dim, start, sympy.Integer(1), drops=True)
    return Span(dim, start, shape(node)[dim], drops=False)


def _part(source: fx.Node, number: int) -> Span:
    if op_name(source) not in _PARTS:
        raise NoLensError(f"a view made by {op_name(source)}")
    unbind = op_name(source) == "aten.unbind"
    whole = cast(fx.Node, source.args[0])
    arguments = positional(source)
    dim = normal_dim(arguments[1] if unbind else arguments[2], len(shape(whole)))
    if unbind:
        return Span(dim, sympy.Integer(number), sympy.Integer(1), drops=True)
    lengths = [expression(part.shape[dim]) for part in source.meta["val"]]
    return Span(dim, sympy.Add(*lengths[:number]), lengths[number], drops=False)


def _from_front(start: object, size: sympy.Expr) -> sympy.Expr:
    if start is None:
        return sympy.Integer(0)
    found = expression(start.meta["val"] if isinstance(start, fx.Node) else start)
    if found.is_negative:
        return found + size
    if not found.is_nonnegative:
        raise NoLensError(f"a start at {found}, which may count from the back")
    return found


@dataclass(frozen=True)
class Lenses:
    """Reads and writes through views; makes nodes where the graph inserts, by `emit(op, args, kwargs)`.

    same: the ops that return their operand itself, as captured."""

    emit: Callable[..., fx.Node]
    sizes: Sizes
    same: frozenset[fx.Node]

    def read(self, view: fx.Node, whole: fx.Node) -> fx.Node:
        """The view again, of the value that its parent has now."""
        if view in self.same:
            return whole
        if view.target is not operator.getitem:
            target = aten.reshape.default if view.target in _VIEWS else view.target
            return self.emit(target, (whole, *view.args[1:]), dict(view.kwargs))
        if op_name(cast(fx.Node, view.args[0])) == _BROADCAST:
            return self.emit(aten.expand.default, (whole, [self._size(size) for size in shape(view)]))
        span = span_of(view)
        start, stop = self._size(span.start), self._size(span.start + span.length)
        if span.drops:
            return self.emit(aten.select.int, (whole, span.dim, start))
        return self.emit(aten.slice.Tensor, (whole, span.dim, start, stop))

    def write(self, view: fx.Node, whole: fx.Node, value: fx.Node, scalar: fx.Node | None) -> fx.Node:
        """`whole` with `value` where the view is.  scalar: the number that fills it, if it is one.

        Raises NoLensError."""
        name = op_name(cast(fx.Node, view.args[0]) if view.target is operator.getitem else view)
        if view in self.same or name == "aten.detach" or (name == _BROADCAST and shape(view) == shape(whole)):
            return value
        if name in _SHAPES and view.meta["val"].dtype == whole.meta["val"].dtype:
            return self.emit(aten.reshape.default, (value, [self._size(size) for size in shape(whole)]))
        if name in _TURNS:
            turned = self.emit(aten.permute.default, (value, _inverse(view)))
            return self.emit(aten.contiguous.default, (turned,))
        if name == "aten.slice" and positional(view)[4] != 1:
            return self.emit(aten.slice_scatter.default, (whole, value, *view.args[1:]))
        if name in _CUTS or name in _PARTS:
            return self._cut(span_of(view), whole, value, scalar)
        raise NoLensError(f"a view made by {name}")

    def _cut(self, span: Span, whole: fx.Node, value: fx.Node, scalar: fx.Node | None) -> fx.Node:
        size = shape(whole)[span.dim]
        if span.length == size and not span.drops:
            return value
        if scalar is not None:
            return self.emit(aten.where.self, (self._within(span, whole), scalar, whole))
        stop = span.start + span.length
        middle = self.emit(aten.unsqueeze.default, (value, span.dim)) if span.drops else value
        parts = [middle]
        if span.start != 0:
            parts.insert(0, self.emit(aten.slice.Tensor, (whole, span.dim, 0, self._size(span.start))))
        if stop != size:
            parts.append(self.emit(aten.slice.Tensor, (whole, span.dim, self._size(stop), END)))
        return self.emit(aten.cat.default, (parts, span.dim))

    def _size(self, size: sympy.Expr) -> fx.Node | int:
        if not self.sizes.tell(size):
            raise NoLensError(f"a view of size {size}, which depends on contents")
        return self.sizes.node(size)

    def _within(self, span: Span, whole: fx.Node) -> fx.Node:
        """Whether a position along the dim is in the span, ready to be broadcast."""
        size, value = shape(whole)[span.dim], cast(torch.Tensor, tensor(whole))
        options = {"dtype": torch.int64, "device": value.device, "pin_memory": False}
        places = self.emit(aten.arange.default, (self._size(size),), options)
        behind = value.ndim - 1 - span.dim
        if behind:
            places = self.emit(aten.view.default, (places, [self._size(size), *[1] * behind]))
        if span.length == 1:
            return self.emit(aten.eq.Scalar, (places, self._size(span.start)))
        stop = span.start + span.length
        sides: list[fx.Node] = []
        if span.start != 0:
            sides.append(self.emit(aten.ge.Scalar, (places, self._size(span.start))))
        if stop != size:
            sides.append(self.emit(aten.lt.Scalar, (places, self._size(stop))))
        return sides[0] if len(sides) == 1 else self.emit(aten.logical_and.default, tuple(sides))


# Views of what may no longer be contiguous.
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})


def _inverse(view: fx.Node) -> list[int]:
    """The permutation that undoes a transpose."""
    ndim = len(shape(view))
    order = list(range(ndim))
    arguments = positional(view)[1:]
    if op_name(view) == "aten.permute":
        order = [normal_dim(dim, ndim) for dim in cast(list[int], arguments[0])]
    elif op_name(view) == "aten.numpy_T":
        order.reverse()
    else:
        a, b = (normal_dim(dim, ndim) for dim in arguments) if arguments else (ndim - 2, ndim - 1)
        order[a], order[b] = order[b], order[a]
    return [order.index(dim) for dim in range(ndim)]
