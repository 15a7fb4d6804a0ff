"""Synonyms: ops that say in other words what a more common op says, written as that one.

    unflatten(x, 2, [4, -1])        →  view(x, [B, S, 4, 16])
    expand_as(x, y)                 →  expand(x, [B, S, D])            y's sizes; y itself is no operand any more
    narrow(x, 1, 2, 3)              →  slice(x, 1, 2, 5)
    movedim(x, 2, 0)                →  permute(x, [2, 0, 1])
    hstack([x, y])                  →  cat([x, y], 1)
    cat([empty, x], 1)              →  alias(x)

So the passes behind `normalize` know one op where PyTorch has many.  A call that does not fit is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument

from sp.passes.fxtools import expression, named, normal_dim, op_name, positional, shape, tensor_operands
from sp.passes.sizes import Sizes

aten = torch.ops.aten
Call = tuple[torch._ops.OpOverload, tuple[object, ...]]
Rewrite = Callable[[fx.Node, Sizes], Call | None]
_END = torch.iinfo(torch.int64).max


def rewrite_synonym(node: fx.Node, sizes: Sizes) -> None:
    """In place; the node keeps its name and users."""
    rewrite = SYNONYMS.get(op_name(node))
    if rewrite is None:
        return
    with node.graph.inserting_before(node):
        call = rewrite(node, sizes)
    if call is not None:
        node.target, args = call
        node.args = cast("tuple[Argument, ...]", args)
        node.kwargs = {}


def _resized(op: torch._ops.OpOverload) -> Rewrite:
    """What names its result's sizes, or another tensor that has them."""
    return lambda node, sizes: (op, (node.args[0], [sizes.node(size) for size in shape(node)]))


def _renamed(op: torch._ops.OpOverload, *fixed: object) -> Rewrite:
    """The same arguments, and more."""
    return lambda node, sizes: (op, (*positional(node), *fixed))


def _joined(dim: int) -> Rewrite:
    """hstack and its like, for operands that have this dim."""

    def rewrite(node: fx.Node, sizes: Sizes) -> Call | None:
        parts = cast(list[fx.Node], node.args[0])
        fits = all(len(shape(part)) == len(shape(node)) > dim for part in parts)
        return (aten.cat.default, (parts, dim)) if fits else None

    return rewrite


def _hstack(node: fx.Node, sizes: Sizes) -> Call | None:
    return _joined(0 if len(shape(node)) == 1 else 1)(node, sizes)


def _concat(node: fx.Node, sizes: Sizes) -> Call | None:
    """concat, concatenate; dims by name are left."""
    parts, dim = positional(node)[:2]
    return (aten.cat.default, (parts, dim)) if isinstance(dim, int) else None


def _filled_parts(node: fx.Node, sizes: Sizes) -> Call | None:
    """cat: torch leaves out empty tensors of one dim, with which people begin to collect."""
    parts, dim = cast(list[fx.Node], node.args[0]), positional(node)[1]
    filled = [part for part in parts if shape(part) != (0,)]
    dtypes = {part.meta["val"].dtype for part in parts}
    if len(dtypes) > 1:  # an empty one still widens the result
        return None
    if len(filled) == 1:
        return aten.alias.default, (filled[0],)
    return (aten.cat.default, (filled, dim)) if 0 < len(filled) < len(parts) else None


def _split_along(dim: int) -> Rewrite:
    """hsplit and its like: in so many parts, or at these indices."""

    def rewrite(node: fx.Node, sizes: Sizes) -> Call:
        parts = node.args[1]
        by_count = isinstance(parts, (int, fx.Node))
        op = aten.tensor_split.sections if by_count else aten.tensor_split.indices
        return op, (node.args[0], parts, dim)

    return rewrite


def _hsplit(node: fx.Node, sizes: Sizes) -> Call | None:
    source = cast(fx.Node, node.args[0])
    return _split_along(0 if len(shape(source)) == 1 else 1)(node, sizes)


def _as_slice(node: fx.Node, sizes: Sizes) -> Call | None:
    """narrow: a start from the back becomes one from the front; an end at the end becomes open."""
    source, dim, start, length = node.args
    values = [one.meta.get("val") if isinstance(one, fx.Node) else one for one in (start, length)]
    if not all(isinstance(value, int) or sizes.knows(value) for value in values):
        return None
    begin, count = (expression(value) for value in values)
    total = shape(cast(fx.Node, source))[normal_dim(dim, len(shape(cast(fx.Node, source))))]
    begin = begin + total if begin.is_negative else begin
    end = _END if begin + count == total else sizes.node(begin + count)
    return aten.slice.Tensor, (source, dim, sizes.node(begin), end)


def _as_cast(node: fx.Node, sizes: Sizes) -> Call | None:
    """type_as: of the other tensor it reads the dtype, unless that lives on another device."""
    operands = tensor_operands(node)
    source, other = (operand.meta["val"] for operand in operands)
    return (aten.to.dtype, (operands[0], other.dtype)) if source.device == other.device else None


def _moved(node: fx.Node, sizes: Sizes) -> Call:
    """movedim: the dims that are named go where they should, the others fill up in order."""
    arguments, ndim = named(node), len(shape(node))
    ends = (arguments["source"], arguments["destination"])
    lists = [cast(list[int], end if isinstance(end, (list, tuple)) else [end]) for end in ends]
    goes = {normal_dim(to, ndim): normal_dim(at, ndim) for at, to in zip(*lists, strict=True)}
    rest = iter([dim for dim in range(ndim) if dim not in goes.values()])
    return aten.permute.default, (node.args[0], [goes[at] if at in goes else next(rest) for at in range(ndim)])


def _reversed(node: fx.Node, sizes: Sizes) -> Call:
    return aten.permute.default, (node.args[0], list(reversed(range(len(shape(node))))))


SYNONYMS: Mapping[str, Rewrite] = {
    **dict.fromkeys(("aten.unflatten", "aten.view_as"), _resized(aten.view.default)),
    **dict.fromkeys(("aten.reshape_as", "aten.ravel"), _resized(aten.reshape.default)),
    **dict.fromkeys(("aten.expand_as", "aten.broadcast_to"), _resized(aten.expand.default)),
    **dict.fromkeys(("aten.movedim", "aten.moveaxis"), _moved),
    "aten.numpy_T": _reversed,
    "aten.narrow": _as_slice,
    "aten.type_as": _as_cast,
    **dict.fromkeys(("aten.concat", "aten.concatenate"), _concat),
    "aten.cat": _filled_parts,
    "aten.hstack": _hstack,
    **dict.fromkeys(("aten.vstack", "aten.row_stack"), _joined(0)),
    "aten.column_stack": _joined(1),
    "aten.dstack": _joined(2),
    "aten.hsplit": _hsplit,
    "aten.vsplit": _split_along(0),
    "aten.dsplit": _split_along(2),
    "aten.fliplr": _renamed(aten.flip.default, [1]),
    "aten.flipud": _renamed(aten.flip.default, [0]),
    "aten.special_softmax": _renamed(aten.softmax.int),
    "aten.special_log_softmax": _renamed(aten.log_softmax.int),
    "aten.linalg_matmul": _renamed(aten.matmul.default),
}
