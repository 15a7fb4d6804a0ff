"""Sources: the values of the graph that an attention is handed for its scores, laid out as it needs them.

cumsum    = aten.cumsum(ne, -1)          [B, S]
→
unsqueeze = aten.unsqueeze(cumsum, 1)    [B, 1, S]
l0        = aten.unsqueeze(…, 2)         [B, 1, 1, S]       batch, heads, queries, keys
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import sympy
import torch
from torch import fx

from sp.passes.builder import Builder
from sp.passes.frames import Frame
from sp.passes.fxtools import is_parameter, op_name, positional, result, tensor
from sp.passes.placements import is_differentiable
from sp.program import Placement, Sharded
from sp.score import Leaf


@dataclass(frozen=True)
class LeafNode:
    """A value of the graph, and the axes of its dims."""

    node: fx.Node
    frame: Frame
    leaf: Leaf


_ANYWHERE = Leaf()  # of the axes of an attention, it has none


@dataclass(frozen=True)
class Number:
    """A constant that the graph makes as a tensor of this dtype: `zeros(S, S)`."""

    value: float
    dtype: torch.dtype
    leaf: Leaf = _ANYWHERE


@dataclass(frozen=True)
class Size:
    """A size, which differs from call to call."""

    value: sympy.Expr
    leaf: Leaf = _ANYWHERE


Source = LeafNode | Number | Size


def filled(node: fx.Node) -> float | None:
    """The constant that fills a tensor, None if this is anything else."""
    name = op_name(node).removeprefix("aten.")
    if name in _FILLS:
        return _FILLS[name]
    place = {"full": 1, "full_like": 1, "new_full": 2}.get(name)
    amount = None if place is None else positional(node)[place]
    return amount if isinstance(amount, (int, float)) else None


_FILLS: Mapping[str, int] = {
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), 0),
}


def is_stored(node: fx.Node) -> bool:
    """Whether this is an input, a parameter or a buffer, or a part of one: memory that is there anyway."""
    while node.op == "call_function" and op_name(node).removeprefix("aten.") in _VIEWS:
        node = cast(fx.Node, node.args[0])
    return node.op in ("placeholder", "get_attr") or _is_parameter_of_many(node)


def _is_parameter_of_many(node: fx.Node) -> bool:
    return node.target is operator.getitem and op_name(cast(fx.Node, node.args[0])) == "sp.replicate_all"


# What shows a tensor that is there, or a part of it, and makes no other.
_VIEWS = frozenset(
    {
        *("view", "squeeze", "unsqueeze", "expand", "permute", "transpose", "t", "mT", "slice", "select", "alias"),
        "sp.replicate",
    }
)


def is_for_tiles(node: fx.Node) -> bool:
    """Whether this is a view of what is there anyway, shown to attentions alone, which cut it for their tiles."""
    readers = (op_name(user) == "sp.attention" or is_for_tiles(user) for user in node.users if result(user) is not None)
    return is_stored(node) and all(readers)


def is_gathered(operand: fx.Node, attention: fx.Node, placement: Placement) -> bool:
    """Whether this is a number for each token that the model computes from activations, and an attention needs whole
    for its scores: the one kind of shard that is gathered unasked, since it is small."""
    return (
        op_name(attention) == "sp.attention"
        and operand not in attention.args[:3]
        and isinstance(placement, Sharded)
        and placement.is_whole
        and placement.outer == 1
    )


def carries_gradient(node: fx.Node, known: dict[fx.Node, bool]) -> bool:
    """Whether it carries a gradient to a parameter, or to an input that asks for one.

    Looks back from the node and no further: a graph has as many masks as attentions.  known: of nodes seen before."""
    waiting = [node]
    while waiting:
        last = waiting[-1]
        unknown = [operand for operand in last.all_input_nodes if operand not in known]
        if last in known or not unknown:
            known.setdefault(waiting.pop(), _carries(last, known))
        else:
            waiting += unknown
    return known[node]


def _carries(node: fx.Node, known: Mapping[fx.Node, bool]) -> bool:
    value = tensor(node)
    if node.op == "placeholder":
        return value is not None and value.requires_grad
    carrying = {operand for operand in node.all_input_nodes if known[operand]}
    return is_parameter(node) or (node.op == "call_function" and is_differentiable(node, carrying))


def descendants(node: fx.Node | None) -> set[fx.Node]:
    """The node and all that is computed from it."""
    found = set[fx.Node]() if node is None else {node}
    waiting = list(found)
    while waiting:
        new = [user for user in waiting.pop().users if user not in found]
        found.update(new)
        waiting += new
    return found


def laid_out(source: Source, build: Builder) -> fx.Node:
    """The source as a node that an attention can take: frame [batch, heads, queries, keys], or a table as it is."""
    if isinstance(source, Size):
        return build(_SCALAR, build.size(source.value), dtype=torch.int64)
    if isinstance(source, Number):
        return build(torch.ops.aten.full.default, [1, 1, 1, 1], source.value, dtype=source.dtype)
    node, axes = source.node, [axis for axis in source.frame if axis is not None]
    if source.leaf.form == "table" or not source.frame:
        return node
    if not axes:
        return build(torch.ops.aten.view.default, node, [1, 1, 1, 1])
    if all(axis in (dim, None) for dim, axis in enumerate(source.frame)) and len(source.frame) == 4:
        return node
    if len(axes) < len(source.frame):
        node = build(torch.ops.aten.squeeze.dims, node, [dim for dim, axis in enumerate(source.frame) if axis is None])
    if axes != sorted(axes):
        node = build(torch.ops.aten.permute.default, node, [axes.index(axis) for axis in sorted(axes)])
    for axis in (axis for axis in range(4) if axis not in axes):
        node = build(torch.ops.aten.unsqueeze.default, node, axis)
    return node


_SCALAR = torch.ops.aten.scalar_tensor.default
