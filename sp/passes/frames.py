"""Frames: which dim of a value is the batch, the heads, the queries or the keys of an attention.

    mask      [B, 1, S, S]                          (batch, heads, queries, keys)
    and       [S, S]        under expand            (queries, keys)
    le        [1, S] <= [S, 1]                      (-, keys) and (queries, -)

The frame of an attention's mask is known; that of every value it is made of follows, op by op, backwards.  A dim of
size 1 belongs to no axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import sympy
from torch import fx

from sp.passes.fxtools import normal_dim, op_name, positional, same_size, shape, tensor

BATCH, HEADS, QUERIES, KEYS = range(4)
Frame = tuple[int | None, ...]


def frame_of(node: fx.Node, axes: Sequence[int]) -> Frame:
    """The frame of a value whose last dims are the last of `axes`, as far as it has them."""
    sizes = shape(node)
    assert len(sizes) <= len(axes), f"{node} has more dims than {axes}"
    return _present(sizes, tuple(axes[len(axes) - len(sizes) :]))


def operand_frame(operand: fx.Node, frame: Frame) -> Frame:
    """The frame of an operand that is broadcast to a value of `frame`."""
    sizes = shape(operand)
    return _present(sizes, frame[len(frame) - len(sizes) :])


def source_frame(node: fx.Node, frame: Frame) -> Frame | None:
    """The frame of what a view, expand or permutation shows; None if it merges or splits dims, or is none of them."""
    source = _only_operand(node)
    if source is None:
        return None
    name = op_name(node).removeprefix("aten.")
    if name == "expand" or (name == "repeat" and _repeats_ones(node, source)):
        return operand_frame(source, frame)
    if name in _TURNS:
        order = _order(node, name, len(frame))
        return tuple(frame[order.index(dim)] for dim in range(len(frame)))
    return _reshaped(shape(source), shape(node), frame) if name in _RESHAPES else None


_TURNS = frozenset({"permute", "transpose", "t", "mT"})
_RESHAPES = frozenset({"view", "reshape", "_unsafe_view", "squeeze", "unsqueeze"})


def _present(sizes: Sequence[sympy.Expr], frame: Frame) -> Frame:
    return tuple(None if size == 1 else axis for size, axis in zip(sizes, frame, strict=True))


def _only_operand(node: fx.Node) -> fx.Node | None:
    source = node.args[0] if node.op == "call_function" and node.args else None
    return source if isinstance(source, fx.Node) and tensor(source) is not None else None


def _repeats_ones(node: fx.Node, source: fx.Node) -> bool:
    sizes = shape(source)
    counts = cast(Sequence[object], node.args[1])
    return all(size == 1 or count == 1 for size, count in zip(sizes, counts[len(counts) - len(sizes) :], strict=True))


def _order(node: fx.Node, name: str, ndim: int) -> list[int]:
    """Where each dim of the result comes from."""
    order = list(range(ndim))
    if name == "permute":
        return [normal_dim(dim, ndim) for dim in cast(Sequence[int], node.args[1])]
    _, *given = positional(node)
    a, b = (normal_dim(dim, ndim) for dim in (given if name == "transpose" else (-2, -1)))
    order[a], order[b] = order[b], order[a]
    return order


def _reshaped(old: Sequence[sympy.Expr], new: Sequence[sympy.Expr], frame: Frame) -> Frame | None:
    """Dims other than 1 keep their order."""
    kept = [(size, axis) for size, axis in zip(new, frame, strict=True) if size != 1]
    wanted = [size for size in old if size != 1]
    if len(kept) != len(wanted) or not all(same_size(a, b) for a, (b, _) in zip(wanted, kept, strict=True)):
        return None
    axes = iter(axis for _, axis in kept)
    return tuple(None if size == 1 else next(axes) for size in old)
