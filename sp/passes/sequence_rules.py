"""Placement rules for ops that work along the sequence itself: slices, pads, joins, attention, maxima, noise.

    slice(x: sharded(dim 1), 1, 0, S-1)             →  sharded(dim 1, [0:S-1])     becomes sp.narrow: nothing travels
    slice(x: sharded(dim 1), 1, 0, 3)               →  replicated                  three tokens, for every rank
    pad(x: sharded(dim 1), [0, 0, 1, 0])            →  sharded(dim 1)  of S+1      becomes sp.move
    cat([cls: replicated, x: sharded(dim 1)], 1)    →  sharded(dim 1)  of S+1      becomes sp.shard, sp.move and a sum
    attention(q, k, v, leaves)                      →  sharded(dim 2)              each covers its whole sequence

A result of another length is a sequence of its own, dealt to the ranks by the same layout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import sympy
import torch
from torch import fx

from sp.passes.fxtools import expression, named, normal_dim, positional, same_size, shape
from sp.passes.rules import Case, Refused, Ruling, operand_need, pointwise, unary
from sp.program import Partial, Placement, Replicated, Sharded


def cut(case: Case) -> Ruling:
    """slice: elsewhere as it is; along the sequence the result covers fewer positions.

    A number of positions that does not grow with the sequence is gathered: the first token is for all to read."""
    _, dim, start, end, step = positional(case.node)
    if normal_dim(dim, len(shape(case.anchor))) != case.placement.dim:
        return unary(case, case.placement)
    if not _is_unmerged(case) or step != 1:
        raise Refused("it slices the sequence with a step, or merged with other dims", "slice before merging dims")
    length = shape(case.node)[case.placement.dim]
    begin = case.placement.length - length if _is_open(end) else _position(start, case.placement.length)
    kept = replace(case.placement, start=case.placement.start + begin, length=length)
    if not case.holds_sequence(length):
        return replace(unary(case, Replicated()), lowering="gather", span=kept)
    return replace(unary(case, kept), lowering="narrow")


def _is_open(end: object) -> bool:
    return end is None or end == torch.iinfo(torch.int64).max


def _position(start: object, length: sympy.Expr) -> sympy.Expr:
    """Where a slice with an end begins: counted from the back if negative, which must be known."""
    value = expression(start.meta["val"] if isinstance(start, fx.Node) else start or 0)
    if not (value.is_negative or value.is_nonnegative):
        raise Refused(f"its start {value} counts from the front or from the back, depending on the length", "use one")
    return length + value if value.is_negative else value


def pad(case: Case) -> Ruling:
    """pad, constant_pad_nd: elsewhere as it is; along the sequence a longer (or shorter) sequence."""
    from_right = len(shape(case.anchor)) - 1 - case.placement.dim
    amounts = cast(list[object], case.node.args[1])[2 * from_right : 2 * from_right + 2]
    if all(amount == 0 for amount in amounts):
        return unary(case, case.placement)
    _check_unmerged(case)
    mode = positional(case.node)[2]
    if isinstance(mode, str) and mode != "constant":
        raise Refused(f"it pads the sequence with mode {mode!r}", "pad with a constant")
    longer = Sharded.whole(case.placement.dim, shape(case.node)[case.placement.dim])
    return Ruling(longer, {case.anchor: case.placement}, lowering="pad")


def _is_unmerged(case: Case) -> bool:
    return case.placement.outer == 1 and same_size(shape(case.anchor)[case.placement.dim], case.placement.length)


def _check_unmerged(case: Case) -> None:
    if not _is_unmerged(case):
        raise Refused("it works along a sequence that is merged with other dims", "do it before merging dims")


def join(case: Case) -> Ruling:
    """cat: along any other dim all parts are cut alike; along the sequence the parts follow each other."""
    dim = normal_dim(positional(case.node)[1], len(shape(case.node)))
    if dim != case.placement.dim:
        needs = {operand: operand_need(case, operand, case.placement.dim) for operand in case.operands}
        return Ruling(case.placement, needs)
    _check_unmerged(case)
    if any(len(shape(operand)) != len(shape(case.node)) for operand in case.operands):
        raise Refused("it joins an empty tensor of one dim to the sequence", "leave the empty one out")
    needs: dict[fx.Node, Placement] = {}
    for operand in case.operands:
        size = shape(operand)[dim]
        needs[operand] = Sharded.whole(dim, size) if case.holds_sequence(size) else Replicated()
    return Ruling(Sharded.whole(dim, shape(case.node)[dim]), needs, lowering="join")


def attention(case: Case) -> Ruling:
    """Queries cover their whole sequence, keys and values theirs; heads and head sizes stay whole.

    Under the transport "merge" the queries have none: they are the same on every rank, and so is the result.
    What the score is computed from is whole on every rank, so that each can cut it for any queries and keys."""
    operands = cast(tuple[fx.Node, ...], case.node.args[:3])
    if case.anchor in operands and (case.placement.dim != 2 or case.placement.outer != 1):
        raise Refused(
            f"the sequence of {case.anchor.name} lives in dim {case.placement.dim}, attention has it in dim 2",
            "transpose to (batch, heads, sequence, head width) before attention",
        )
    needs: dict[fx.Node, Placement] = {leaf: Replicated() for leaf in case.operands}
    along = operands[1:] if named(case.node)["transport"] == "merge" else operands
    needs |= {operand: Sharded.whole(2, shape(operand)[2]) for operand in along}
    return Ruling(needs[operands[0]], needs)


def peak(case: Case) -> Ruling:
    """The maximum or minimum of one dim, which needs no gradient."""
    _, dim, op = positional(case.node)
    return unary(case, Partial(cast(str, op)) if dim == case.placement.dim else case.placement)


def noise(case: Case) -> Ruling:
    """As its operand; each element knows its place in the whole."""
    ruling = pointwise(replace(case, operands=case.operands[:1]))
    return replace(ruling, operands={**ruling.operands, case.operands[1]: Replicated()}, lowering="noise")
