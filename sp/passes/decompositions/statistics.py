"""Softmax, log-sum-exp, variance, any and all along the sequence: sums, once each rank knows the maximum or the mean.

var(x, [1])   →   c = x - sum(x, [1], True) / S;   sum(c * c, [1]) / (S - 1)
"""

from __future__ import annotations

from typing import cast

import torch
from torch import fx

from sp.passes.builder import Builder
from sp.passes.decompositions.common import aten, dims_of, dtype_of, peak, sequence_dim, squeezed, total, wide
from sp.passes.fxtools import op_name, positional, product, shape


def softmax(node: fx.Node, build: Builder) -> fx.Node | None:
    """softmax, log_softmax outside of attention: pooling by attention, for example."""
    source, dim, dtype = positional(node)
    source = cast(fx.Node, source)
    along = sequence_dim(source, dims_of(dim, len(shape(source))), build)
    if along is None:
        return None
    given = cast("torch.dtype | None", dtype) or dtype_of(source)
    x = build.cast(source, wide(given))
    x = build(aten.sub.Tensor, x, peak(build, x, [along], along, "max"))
    e = build(aten.exp.default, x)
    mass = total(build, e, [along], True)
    if op_name(node) == "aten.softmax":
        return build.cast(build(aten.div.Tensor, e, mass), given)
    return build.cast(build(aten.sub.Tensor, x, build(aten.log.default, mass)), given)


def logsumexp(node: fx.Node, build: Builder) -> fx.Node | None:
    source, named, keep = positional(node)
    source = cast(fx.Node, source)
    dims = dims_of(named, len(shape(source)))
    along = sequence_dim(source, dims, build)
    if along is None:
        return None
    x = build.cast(source, wide(dtype_of(node)))
    top = peak(build, x, dims, along, "max")
    top = build(aten.masked_fill.Scalar, top, build(aten.isinf.default, top), 0)  # inf - inf would be NaN
    mass = total(build, build(aten.exp.default, build(aten.sub.Tensor, x, top)), dims, True)
    result = build(aten.add.Tensor, build(aten.log.default, mass), top)
    return build.cast(squeezed(build, result, dims, bool(keep)), dtype_of(node))


def variance(node: fx.Node, build: Builder) -> fx.Node | tuple[fx.Node, ...] | None:
    """var, var_mean."""
    target = cast(torch._ops.OpOverload, node.target)
    given = dict(zip([argument.name for argument in target._schema.arguments], positional(node), strict=True))
    source = cast(fx.Node, given["self"])
    sizes = shape(source)
    dims = dims_of(given.get("dim"), len(sizes))
    if sequence_dim(source, dims, build) is None:
        return None
    correction, keep = _correction(given), bool(given.get("keepdim", False))
    count = product([sizes[dim] for dim in dims])
    kind = dtype_of(source)
    x = build.cast(source, wide(kind))
    mean = build(aten.div.Tensor, total(build, x, dims, True), build.size(count))
    apart = build(aten.sub.Tensor, x, mean)
    squares = total(build, build(aten.mul.Tensor, apart, apart), dims, keep)
    result = build.cast(build(aten.div.Tensor, squares, build.size(count - correction)), kind)
    if op_name(node) == "aten.var":
        return result
    return result, build.cast(squeezed(build, mean, dims, keep), kind)


def _correction(given: dict[str, object]) -> int:
    if "unbiased" in given:
        return int(bool(given["unbiased"]))
    correction = given.get("correction")
    return 1 if correction is None else int(cast(int, correction))


def anything(node: fx.Node, build: Builder) -> fx.Node | None:
    """any, all: whether the count of what is not zero (of what is) is more than none (is none)."""
    target = cast(torch._ops.OpOverload, node.target)
    given = dict(zip([argument.name for argument in target._schema.arguments], positional(node), strict=True))
    source = cast(fx.Node, given["self"])
    dims = dims_of(given.get("dim"), len(shape(source)))
    if sequence_dim(source, dims, build) is None:
        return None
    wanted = aten.ne.Scalar if op_name(node) == "aten.any" else aten.eq.Scalar
    count = build(aten.sum.dim_IntList, build(wanted, source, 0), dims, bool(given.get("keepdim", False)))
    return build(aten.gt.Scalar if op_name(node) == "aten.any" else aten.eq.Scalar, count, 0)
