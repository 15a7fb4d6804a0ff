"""Placement rules for ops that compute along some dims and treat all others alike: softmax, sort, norms, reductions.

    softmax(x: sharded(dim 1), -1)            →  sharded(dim 1)
    amax(x: sharded(dim 2), [1])              →  sharded(dim 1)
    sum(x: sharded(dim 1), [1])               →  partial(sum)
    layer_norm(x: sharded(dim 1), [D], w)     →  sharded(dim 1)        w replicated

Tensor operands meet as in broadcasting, from the right.  Each raises Refused where the sequence lives in a dim that the
op needs whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from torch import fx

from sp.passes.fxtools import named, normal_dim, shape
from sp.passes.rules import Case, Pattern, Refused, Rule, Ruling, rule_from
from sp.program import Partial

ELSEWHERE = "move the sequence to another dim, or keep this op on values without the sequence"
_GONE = "gone"  # the letter of a dim that is reduced to size 1: no operand has it


def along(*which: str | int, remedy: str = ELSEWHERE) -> Rule:
    """Ops that need dims whole and move none: softmax, cumsum, flip, sort, pooling.

    which: names of the arguments that hold those dims, or the dims.  An argument that names none means all of them."""

    def rule(case: Case) -> Ruling:
        ndim = len(shape(case.node))
        return by_dims(case, letters(ndim), dims_of(case.node, which, ndim), remedy=remedy)

    return rule


def reducing(*which: str | int, remedy: str = ELSEWHERE) -> Rule:
    """Ops that make one number of whole dims, which go, or stay as size 1 under `keepdim`: amax, var, norm, any."""

    def rule(case: Case) -> Ruling:
        dims, result = _reduced(case, which)
        return by_dims(case, result, dims, remedy=remedy)

    return rule


def summing(*which: str | int) -> Rule:
    """The same for sums and counts, which every rank makes of its own part."""
    return lambda case: by_dims(case, _reduced(case, which)[1], ())


def reading(*which: int) -> Rule:
    """Ops that read all operands but the first one whole: isin, bucketize, prelu."""

    def rule(case: Case) -> Ruling:
        ndim = len(shape(case.node))
        return by_dims(case, letters(ndim), dims_of(case.node, which, ndim), 1)

    return rule


def letters(ndim: int) -> tuple[str, ...]:
    """What `...` calls that many dims."""
    return tuple(f".{ndim - dim}" for dim in range(ndim))


def by_dims(
    case: Case, result: Sequence[str], whole: Collection[int], followers: int | None = None, remedy: str = ELSEWHERE
) -> Ruling:
    """The ruling for an op that needs the dims `whole` whole.

    whole: counted in what the operands broadcast to.  followers: how many operands follow the sequence (None: all);
    the others must be without it."""
    count = len(case.operands) if followers is None else followers
    ndim = max(len(shape(operand)) for operand in case.operands[:count])
    at = case.placement.dim + ndim - len(shape(case.anchor))
    if case.anchor in case.operands[:count] and at in whole:
        raise Refused(whole_dim(case), remedy)
    others = [_private(number, operand) for number, operand in enumerate(case.operands[count:])]
    apart = frozenset(letter for term in others for letter in term)
    return rule_from(Pattern((*[("...",)] * count, *others), tuple(result), apart), case)


def whole_dim(case: Case) -> str:
    """Why an op cannot be computed on parts."""
    return f"it needs dim {case.placement.dim} of {case.anchor.name} whole, and the sequence lives there"


def _private(number: int, operand: fx.Node) -> tuple[str, ...]:
    """Letters that no other operand has."""
    return tuple(f"{number}:{dim}" for dim in range(len(shape(operand))))


def dims_of(node: fx.Node, which: Sequence[str | int], ndim: int) -> list[int]:
    """The dims that these arguments name, or that are given; all if an argument names none."""
    found: list[int] = []
    for one in which:
        value = named(node).get(one) if isinstance(one, str) else one
        if value is None or value == []:
            return list(range(ndim))
        found += cast("list[int]", value if isinstance(value, (list, tuple)) else [value])
    return [normal_dim(dim, ndim) for dim in found]


def reduced_dims(node: fx.Node, ndim: int) -> tuple[list[int], bool]:
    """The dims that a reduction sums over (none named: all), and whether it keeps them as size 1."""
    return dims_of(node, ("dim",), ndim), bool(named(node).get("keepdim", False))


def _reduced(case: Case, which: Sequence[str | int]) -> tuple[list[int], list[str]]:
    ndim = max(len(shape(operand)) for operand in case.operands)
    dims, keep = dims_of(case.node, which, ndim), bool(named(case.node).get("keepdim", False))
    left = [_GONE if dim in dims else letter for dim, letter in enumerate(letters(ndim))]
    return dims, left if keep else [letter for letter in left if letter != _GONE]


def mean(case: Case) -> Ruling:
    ruling = summing("dim")(case)
    if isinstance(ruling.output, Partial):
        raise Refused("it averages over the sequence", "use sum and divide by the length")
    return ruling


def extreme(case: Case) -> Ruling:
    """max, min: of two tensors, element by element, or along a dim."""
    if "other" in named(case.node):
        return by_dims(case, letters(len(shape(case.node))), ())
    return reducing("dim")(case)


def diagonal(case: Case) -> Ruling:
    """Of two whole dims, which become the last one."""
    ndim = len(shape(case.anchor))
    dims = dims_of(case.node, ("dim1", "dim2"), ndim)
    rest = [letter for dim, letter in enumerate(letters(ndim)) if dim not in dims]
    return by_dims(case, [*rest, _GONE], dims)


def unfold(case: Case) -> Ruling:
    """Windows along a whole dim, whose positions become the last dim."""
    ndim = len(shape(case.anchor))
    return by_dims(case, [*letters(ndim), _GONE], dims_of(case.node, ("dimension",), ndim))


def histogram(case: Case) -> Ruling:
    """histc: counts, if the bins are the same on every rank."""
    arguments = named(case.node)
    if arguments["min"] == arguments["max"]:
        why = f"its bins lie between the extremes of {case.anchor.name}, which differ between ranks"
        raise Refused(why, "name the bounds: torch.histc(x, bins, min, max)")
    return by_dims(case, [_GONE], ())
