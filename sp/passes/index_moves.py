"""The index algebra's rules for ops that move elements: views, permutations, slices, gathers.

x[2:]        x's coordinate c0 becomes c0 + 2
x[i, j]      c0 and c1 become the values of the index tensors i and j
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import sympy
from torch import fx

from sp.passes.fxtools import normal_dim, op_name, shape
from sp.passes.index_algebra import (
    IndexAlgebra,
    Opaque,
    Rule,
    Value,
    as_number,
    coordinate,
    is_condition,
    rename,
    substitute,
)


def _reindex(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
    """view, reshape, squeeze, unsqueeze, expand: dims that are kept keep their order; all others have size 1."""
    source = cast(fx.Node, args[0])
    value, old, new = algebra.value(source), shape(source), shape(node)
    if op_name(node) in ("aten.expand", "aten.repeat"):
        _check_repeats(node, old, args)
        return algebra.aligned(source, node)
    kept_old = [dim for dim, size in enumerate(old) if size != 1]
    kept_new = [dim for dim, size in enumerate(new) if size != 1]
    if [old[dim] for dim in kept_old] != [new[dim] for dim in kept_new]:
        raise Opaque(node, f"{op_name(node)} merges or splits dims: {old} to {new}")
    return rename(value, dict(zip(kept_old, kept_new, strict=True)))


def _check_repeats(node: fx.Node, old: Sequence[sympy.Expr], args: tuple[object, ...]) -> None:
    """A repeat is an expand where every repeated dim has size 1."""
    times = cast(list[object], args[1])[-len(old) :] if op_name(node) == "aten.repeat" and old else []
    if any(size != 1 and count != 1 for size, count in zip(old, times, strict=False)):
        raise Opaque(node, f"it repeats a dim of {tuple(old)} by {times}")


def _transpose(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
    ndim = len(shape(node))
    order = list(range(ndim))
    if op_name(node) == "aten.permute":
        order = [normal_dim(dim, ndim) for dim in cast(list[int], args[1])]
    else:
        a, b = (args[1], args[2]) if op_name(node) == "aten.transpose" else (-2, -1)
        a, b = normal_dim(a, ndim), normal_dim(b, ndim)
        order[a], order[b] = order[b], order[a]
    return rename(algebra.value(args[0]), {old: new for new, old in enumerate(order)})


def _slice(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
    source = cast(fx.Node, args[0])
    dim = normal_dim(args[1], len(shape(source)))
    start = as_number(algebra.value(args[2])) if args[2] is not None else sympy.Integer(0)
    if not start.is_nonnegative:
        raise Opaque(node, f"a slice that begins at {start}")
    place = sympy.Integer(0) if shape(node)[dim] == 1 else coordinate(dim)
    return substitute(algebra.value(source), {dim: cast(Value, start + algebra.value(args[4]) * place)})


def _select(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
    source = cast(fx.Node, args[0])
    ndim = len(shape(source))
    dim = normal_dim(args[1], ndim)
    chosen = algebra.value(args[2])
    if as_number(chosen).is_negative:
        chosen = shape(source)[dim] + as_number(chosen)
    if not as_number(chosen).is_nonnegative:
        raise Opaque(node, f"it selects {chosen}, which may count from the back")
    moved: dict[int, Value | int] = {later: coordinate(later - 1) for later in range(dim + 1, ndim)}
    return substitute(algebra.value(source), {**moved, dim: chosen})


def _gather(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
    """`aten.index(x, [i0, i1, …])`: x's coordinates become the index tensors' values."""
    source = cast(fx.Node, args[0])
    indices = cast(list[fx.Node | None], args[1])
    if None in indices or len(indices) != len(shape(source)):
        raise Opaque(node, "an index that leaves dims out")
    places = {dim: algebra.aligned(index, node) for dim, index in enumerate(indices)}
    wrong = [place for place in places.values() if is_condition(place) or not place.is_nonnegative]
    if wrong:
        raise Opaque(node, f"an index of {wrong[0]}, which selects by truth or counts from the back")
    return substitute(algebra.value(source), places)


MOVES: Mapping[str, Rule] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "squeeze", "unsqueeze", "expand", "repeat"), _reindex),
    **dict.fromkeys(("transpose", "permute", "t", "mT"), _transpose),
    "slice": _slice,
    "select": _select,
    "index": _gather,
}
