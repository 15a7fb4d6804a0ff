"""What the decompositions share: which dims hold the sequence, sums and maxima over it."""

from __future__ import annotations

from typing import cast

import torch
from torch import fx

from sp.passes.builder import Builder
from sp.passes.fxtools import normal_dim, shape
from sp.passes.rules import Refused
from sp.runtime import ops

aten = torch.ops.aten


def dims_of(argument: object, ndim: int) -> list[int]:
    """The dims that a reduction names; none named means all."""
    if argument is None or argument == []:
        return list(range(ndim))
    listed = cast("list[int]", argument if isinstance(argument, (list, tuple)) else [argument])
    return [normal_dim(dim, ndim) for dim in listed]


def sequence_dim(source: fx.Node, dims: list[int], build: Builder) -> int | None:
    """The one of `dims` in which a sequence lives."""
    found = [dim for dim in dims if build.program.holds_sequence(shape(source)[dim])]
    if len(found) > 1:
        raise Refused(f"it works over dims {found} of {source.name}, which both hold a sequence", "do it one by one")
    return found[0] if found else None


def wide(dtype: torch.dtype) -> torch.dtype:
    """What holds a sum: 16 bits overflow (float16) or round; torch's kernels, too, take those in 32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def dtype_of(node: fx.Node) -> torch.dtype:
    return cast(torch.Tensor, node.meta["val"]).dtype


def total(build: Builder, x: fx.Node, dims: list[int], keep: bool) -> fx.Node:
    """The sum over `dims`, in x's own dtype."""
    return build(aten.sum.dim_IntList, x, dims, keep, dtype=dtype_of(x))


def peak(build: Builder, x: fx.Node, dims: list[int], along: int, op: str) -> fx.Node:
    """The maximum (or minimum) over `dims`, kept with size 1; it has no gradient."""
    x = build(aten.detach.default, x)
    others = [dim for dim in dims if dim != along]
    if others:
        x = build(aten.amax.default if op == "max" else aten.amin.default, x, others, True)
    return build(ops.peak, x, along, op)


def squeezed(build: Builder, x: fx.Node, dims: list[int], keep: bool) -> fx.Node:
    """`x` without its `dims`, which have size 1."""
    return x if keep or not dims else build(aten.squeeze.dims, x, dims)
