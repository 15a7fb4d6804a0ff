"""Placement rules for ops that compute along dims: norms, softmax, sums, products, lookups, losses.

    softmax(x: sharded(dim 1), -1)              →  sharded(dim 1)
    sum(x: sharded(dim 1), [1])                 →  partial(sum)
    cross_entropy(x: sharded(dim 0), t, SUM)    →  partial(sum)              t cut alike

Each raises Refused where the sequence lives in a dim that the op needs whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import fx

from sp.passes.fxtools import normal_dim, positional, shape
from sp.passes.rules import Case, Refused, Rule, Ruling, by_pattern, operand_need, unary
from sp.program import Partial, Placement, Replicated


def along(position: int) -> Rule:
    """Ops that need the dims in argument `position` whole and keep the shape: softmax, cumsum, flip."""

    def rule(case: Case) -> Ruling:
        argument = positional(case.node)[position]
        ndim = len(shape(case.anchor))
        dims = argument if isinstance(argument, (list, tuple)) else [argument]
        if case.placement.dim in [normal_dim(dim, ndim) for dim in dims]:
            raise Refused(f"it needs dim {case.placement.dim} whole, and the sequence lives there", "use another dim")
        return unary(case, case.placement)

    return rule


def normalized(case: Case) -> Ruling:
    """layer_norm, rms_norm: the trailing dims of `normalized_shape` stay whole, weights are shared."""
    count = len(cast(list[int], case.node.args[1]))
    ndim = len(shape(case.operands[0]))
    if case.anchor is not case.operands[0] or case.placement.dim >= ndim - count:
        raise Refused("it normalizes over the dim where the sequence lives", "normalize over the features")
    needs: dict[fx.Node, Placement] = dict.fromkeys(case.operands, Replicated())
    return Ruling(case.placement, {**needs, case.anchor: case.placement})


def total_sum(case: Case) -> Ruling:
    """sum over dims: partial where they hold the sequence, otherwise as it is."""
    ndim = len(shape(case.anchor))
    dims, keep = reduced_dims(case.node, ndim)
    if case.placement.dim in dims:
        return unary(case, Partial())
    kept = case.placement.dim if keep else case.placement.dim - sum(dim < case.placement.dim for dim in dims)
    return unary(case, replace(case.placement, dim=kept))


def reduced_dims(node: fx.Node, ndim: int) -> tuple[list[int], bool]:
    """The dims that a reduction sums over (none named: all), and whether it keeps them as size 1."""
    assert isinstance(node.target, torch._ops.OpOverload)
    named = dict(zip([argument.name for argument in node.target._schema.arguments], positional(node), strict=True))
    dims = cast("list[int] | None", named.get("dim"))
    return [normal_dim(dim, ndim) for dim in dims] if dims else list(range(ndim)), bool(named.get("keepdim", False))


def mean(case: Case) -> Ruling:
    ruling = total_sum(case)
    if isinstance(ruling.output, Partial):
        raise Refused("it averages over the sequence", "use sum and divide by the length")
    return ruling


def matmul(case: Case) -> Ruling:
    """A vector takes part as one row or one column, which the result does not have."""
    left, right = (len(shape(cast(fx.Node, operand))) for operand in positional(case.node))
    row, column = ("" if left == 1 else "m "), ("" if right == 1 else " n")
    first, second = ("k" if left == 1 else "... m k"), ("k" if right == 1 else "... k n")
    return by_pattern(f"{first}, {second} -> ... {row}{column}")(case)


def embedding(case: Case) -> Ruling:
    """Indices on any dim; the table is whole.  Two options make its gradient something else than a sum over tokens."""
    *_, by_frequency, sparse = positional(case.node)
    if by_frequency or sparse:
        raise Refused("its gradient is sparse or scaled by how often an index occurs", "leave both options off")
    return by_pattern("n! d!, ... -> ... d")(case)


def cross_entropy(case: Case) -> Ruling:
    """(N, C) scores against N targets, summed: `reduce` has turned the mean into sum / count."""
    scores, target, weight, reduction, *_ = positional(case.node)
    scores, target = cast(fx.Node, scores), cast(fx.Node, target)
    assert reduction != 1, "reduce has made a sum of this mean"
    if len(shape(scores)) != 2 or len(shape(target)) != 1:
        raise Refused("its scores are not (tokens, classes) with one class index per token", "flatten them")
    if case.anchor is scores and case.placement.dim != 0:
        raise Refused("the sequence lives in its class dim", "put the classes last")
    rows = replace(case.placement, dim=0)
    needs: dict[fx.Node, Placement] = {scores: rows, target: operand_need(case, target, 0)}
    if isinstance(weight, fx.Node):
        needs[weight] = Replicated()
    return Ruling(rows if reduction == 0 else Partial(), needs)
