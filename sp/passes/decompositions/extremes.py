"""Maxima and minima along the sequence.

amax(x, [1])  →  hits = x == peak;  sum(where(hits, x, 0), [1]) / sum(hits, [1])     ties share the gradient
max(x, 1)     →  place = first position of a hit;  sum(where(position == place, x, 0), [1]), place
"""

from __future__ import annotations

from typing import cast

import torch
from torch import fx

from sp.passes.builder import Builder
from sp.passes.decompositions.common import aten, dims_of, dtype_of, peak, sequence_dim, squeezed, total
from sp.passes.fxtools import op_name, positional, shape
from sp.passes.rules import Refused
from sp.runtime import ops


def _op(node: fx.Node) -> str:
    return "max" if "max" in op_name(node) else "min"


def over_dims(node: fx.Node, build: Builder) -> fx.Node | None:
    """amax, amin."""
    source, dims, keep = positional(node)
    return _over_dims(node, cast(fx.Node, source), dims, bool(keep), build)


def _over_dims(node: fx.Node, source: fx.Node, named: object, keep: bool, build: Builder) -> fx.Node | None:
    dims = dims_of(named, len(shape(source)))
    along = sequence_dim(source, dims, build)
    if along is None:
        return None
    top = peak(build, source, dims, along, _op(node))
    if not dtype_of(source).is_floating_point:
        return squeezed(build, top, dims, keep)
    hits = _hits(build, source, top)
    count = build(aten.sum.dim_IntList, hits, dims, keep)
    return build(aten.div.Tensor, _picked(build, source, hits, dims, keep), count)


def _hits(build: Builder, x: fx.Node, top: fx.Node) -> fx.Node:
    """Where x is its maximum, or NaN, which is then the maximum."""
    hits = build(aten.eq.Tensor, x, top)
    return build(aten.logical_or.default, hits, build(aten.ne.Tensor, x, x)) if dtype_of(x).is_floating_point else hits


def _picked(build: Builder, x: fx.Node, where: fx.Node, dims: list[int], keep: bool) -> fx.Node:
    zero = build(aten.zeros_like.default, x)
    return total(build, build(aten.where.self, where, x, zero), dims, keep)


def of_dim(node: fx.Node, build: Builder) -> fx.Node | tuple[fx.Node, ...] | None:
    """max, min: of all elements, or values and places along one dim."""
    overload = cast(torch._ops.OpOverload, node.target)._overloadname
    source = cast(fx.Node, node.args[0])
    if overload == "default":
        return _over_dims(node, source, None, False, build)
    if overload != "dim":
        return None  # of two tensors: pointwise
    _, dim, keep = positional(node)
    first = _first(node, source, dim, build)
    if first is None:
        return None
    along, places, place = first
    here = build(aten.eq.Tensor, places, place)
    return _picked(build, source, here, [along], bool(keep)), squeezed(build, place, [along], bool(keep))


def place(node: fx.Node, build: Builder) -> fx.Node | None:
    """argmax, argmin along the sequence: the first position of several."""
    source, dim, keep = positional(node)
    source = cast(fx.Node, source)
    if dim is None:
        if any(map(build.program.holds_sequence, shape(source))):
            raise Refused("it counts the elements of all dims, the sequence among them", "name the dim")
        return None
    first = _first(node, source, dim, build)
    return None if first is None else squeezed(build, first[2], [first[0]], bool(keep))


def _first(node: fx.Node, source: fx.Node, dim: object, build: Builder) -> tuple[int, fx.Node, fx.Node] | None:
    """The sequence's dim, all its positions, and the first one at which `source` is at its maximum."""
    sizes = shape(source)
    along = sequence_dim(source, dims_of(dim, len(sizes)), build)
    if along is None:
        return None
    if not build.program.is_length(sizes[along]):
        raise Refused(f"dim {along} of {source.name} merges the sequence with other dims", "do it before merging")
    hits = _hits(build, source, peak(build, source, [along], along, _op(node)))
    places = build.positions(sizes[along], along, len(sizes))
    beyond = build(aten.full_like.default, places, build.size(sizes[along]), pin_memory=False)
    return along, places, build(ops.peak, build(aten.where.self, hits, places, beyond), along, "min")
