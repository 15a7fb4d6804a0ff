"""Placement rules for ops that only move elements: views, permutations, slices, joins, pads.

    view(x: sharded(dim 1), [B*S, D])       →  sharded(dim 0, outer=B)      local call: [-1, D]
    slice(x: sharded(dim 1), 1, 0, S-1)     →  sharded(dim 1, [0:S-1])      becomes sp.narrow

Each raises Refused where the sequence cannot be followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import sympy
from torch import fx

from sp.passes.fxtools import exact_quotient, named, normal_dim, op_name, positional, product, shape
from sp.passes.rules import Case, Refused, Ruling, operand_need, unary
from sp.program import Sharded


def reshape(case: Case) -> Ruling:
    """view, reshape.  The sizes as the model wrote them, but for -1 in the one dim whose size differs on a rank."""
    placement, new = _reshaped(case), shape(case.node)
    written = cast(list[object], positional(case.node)[1])
    if not isinstance(written, (list, tuple)):
        raise Refused("it reads the same bytes as another dtype", "convert with .to(dtype)")
    sizes = [-1 if dim == placement.dim else (new[dim] if size == -1 else size) for dim, size in enumerate(written)]
    return unary(case, placement, {1: sizes})


def merging(case: Case) -> Ruling:
    """flatten: a reshape whose own arguments are right on a rank too."""
    return unary(case, _reshaped(case))


def _reshaped(case: Case) -> Sharded:
    old, new = shape(case.anchor), shape(case.node)
    placement = moved_by_reshape(case.placement, old, new)
    if placement is None:
        raise Refused(
            f"it reshapes {old} to {new}, which splits or mixes the sequence (dim {case.placement.dim})",
            "transpose before the reshape, so that tokens stay in order",
        )
    return placement


def moved_by_reshape(placement: Sharded, old: Sequence[sympy.Expr], new: Sequence[sympy.Expr]) -> Sharded | None:
    """Row-major order keeps (elements outside, sequence, elements inside): find the dim that holds the sequence now."""
    outside = product(old[: placement.dim]) * placement.outer
    for dim, size in enumerate(new):
        outer = exact_quotient(outside, product(new[:dim]))
        if outer is not None and exact_quotient(size, outer * placement.length) is not None:
            return replace(placement, dim=dim, outer=outer)
    return None


def transpose(case: Case) -> Ruling:
    """transpose, swapaxes; t, mT, mH change the last two dims, if there are two."""
    ndim = len(shape(case.anchor))
    _, *dims = positional(case.node)
    a, b = (normal_dim(dim, ndim) for dim in dims or ((-2, -1) if ndim > 1 else (0, 0)))
    moved = {a: b, b: a}.get(case.placement.dim, case.placement.dim)
    return unary(case, replace(case.placement, dim=moved))


def permute(case: Case) -> Ruling:
    order = [normal_dim(dim, len(shape(case.anchor))) for dim in cast(list[int], case.node.args[1])]
    return unary(case, replace(case.placement, dim=order.index(case.placement.dim)))


def unsqueeze(case: Case) -> Ruling:
    at = normal_dim(case.node.args[1], len(shape(case.node)))
    return unary(case, replace(case.placement, dim=case.placement.dim + (at <= case.placement.dim)))


def squeeze(case: Case) -> Ruling:
    """The sequence's dim is not squeezed: its size is symbolic, and a rank may hold one token of it."""
    old = shape(case.anchor)
    gone = _squeezed(case.node, len(old))
    dropped = [dim for dim in gone if old[dim] == 1]
    if case.placement.dim in gone or gone != dropped:
        raise Refused("it squeezes a dim that is not surely of size 1 on every rank", "squeeze named dims of size 1")
    return unary(case, replace(case.placement, dim=case.placement.dim - sum(dim < case.placement.dim for dim in gone)))


def _squeezed(node: fx.Node, ndim: int) -> list[int]:
    if len(node.args) < 2:
        raise Refused("it squeezes whatever dim happens to be 1", "name the dims to squeeze")
    dims = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[1]]
    return [normal_dim(dim, ndim) for dim in dims]


def expand(case: Case) -> Ruling:
    dim = case.placement.dim + len(shape(case.node)) - len(shape(case.anchor))
    sizes = [-1 if at == dim else size for at, size in enumerate(cast(list[object], positional(case.node)[1]))]
    return unary(case, replace(case.placement, dim=dim), {1: sizes})


def repeat(case: Case) -> Ruling:
    """repeat, tile: once along the sequence."""
    times = cast(list[object], positional(case.node)[1])
    dim = case.placement.dim + len(shape(case.node)) - len(shape(case.anchor))
    from_right = len(shape(case.node)) - dim
    if from_right <= len(times) and times[-from_right] != 1:
        where = f"dim {case.placement.dim} of {case.anchor.name}, where the sequence lives"
        raise Refused(f"it repeats {where}", "repeat the inputs instead, or use repeat_interleave")
    return unary(case, replace(case.placement, dim=dim))


def repeat_interleave(case: Case) -> Ruling:
    """Repeated tokens stay next to each other: like a dim of that size, merged behind the sequence."""
    arguments = named(case.node)
    if len(case.operands) > 1 or "self" not in arguments or arguments["output_size"] is not None:
        raise Refused("its result is as long as its data say", "give one number of repeats, and no output_size")
    if arguments["dim"] is not None:
        return unary(case, case.placement)
    outside = product(shape(case.anchor)[: case.placement.dim])
    return unary(case, replace(case.placement, dim=0, outer=outside * case.placement.outer))


def split(case: Case) -> Ruling:
    """split, chunk, unbind along any other dim."""
    positions = {"aten.unbind": 1}
    at = cast(int, positional(case.node)[positions.get(op_name(case.node), 2)])
    dim = normal_dim(at, len(shape(case.anchor)))
    if dim == case.placement.dim:
        raise Refused(f"it splits dim {dim}, where the sequence lives", "split another dim, or slice the sequence")
    if op_name(case.node) != "aten.unbind":
        return unary(case, case.placement)
    return unary(case, replace(case.placement, dim=case.placement.dim - (dim < case.placement.dim)))


def select(case: Case) -> Ruling:
    dim = normal_dim(case.node.args[1], len(shape(case.anchor)))
    if dim == case.placement.dim:
        raise Refused("it selects one position of the sequence", "take it by a slice and a sum")
    return unary(case, replace(case.placement, dim=case.placement.dim - (dim < case.placement.dim)))


def stack(case: Case) -> Ruling:
    at = normal_dim(positional(case.node)[1], len(shape(case.node)))
    needs = {operand: operand_need(case, operand, case.placement.dim) for operand in case.operands}
    return Ruling(replace(case.placement, dim=case.placement.dim + (at <= case.placement.dim)), needs)
