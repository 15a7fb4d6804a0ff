"""Proof that a mask operand is a band of positions: the index algebra's value, read as bounds on `j - i`.

    c3 <= c2                                   → causal
    (c3 <= c2) & (c3 > c2 - 128)               → window(127, 0)
    true                                       → full
    Piecewise((0, c3 <= c2), (-oo, true))      → causal            additive masks

What holds for every length is proven; everything else is `Unproven`, with the node to blame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import sympy
from sympy.logic.boolalg import Boolean
from torch import fx

from sp.mask import FULL, Band
from sp.passes.frames import KEYS, QUERIES, Frame
from sp.passes.fxtools import shape
from sp.passes.index_algebra import (
    IndexAlgebra,
    Opaque,
    Value,
    as_condition,
    as_number,
    branches,
    coordinate,
    first_true,
    is_condition,
)
from sp.score import HIDDEN_BELOW

_Comparison = sympy.Le | sympy.Lt | sympy.Ge | sympy.Gt | sympy.Eq


class Unproven(Exception):
    """The mask is not provably a band; `node` is to blame."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


def prove_mask(mask: fx.Node, algebra: IndexAlgebra, frame: Frame | None = None) -> tuple[Band, bool]:
    """The band that a mask, boolean or additive, describes whatever the length, and whether it hides softly: by large
    negative numbers, of which a row that sees nothing else sees the mean.  Raises Unproven.

    frame: of the mask's dims; None where its last two are queries and keys."""
    value = _value(mask, algebra)
    band = _band(_visible(value, mask), *_coordinates(mask, frame), mask)
    soft = _hides_softly(value)
    if soft and not shows_itself(band):
        raise Unproven(mask, "some row sees nothing, and a finite number added to all its scores hides none of them")
    return band, soft


def prove_condition(node: fx.Node, negated: bool, algebra: IndexAlgebra, frame: Frame) -> Band:
    """The band where `node`, boolean or a number that is not 0, is true, or (negated) where it is not."""
    value = as_condition(_value(node, algebra))
    visible = cast(Boolean, sympy.Not(value)) if negated else value
    return _band(visible, *_coordinates(node, frame), node)


def shows_itself(band: Band) -> bool:
    """Whether position i sees position i."""
    return not (_negative(band.left) or _negative(band.right))


def _value(node: fx.Node, algebra: IndexAlgebra) -> Value:
    try:
        return algebra.value(node)
    except Opaque as opaque:
        raise Unproven(opaque.node, opaque.why) from opaque


def _coordinates(node: fx.Node, frame: Frame | None) -> tuple[sympy.Symbol, sympy.Symbol]:
    """Of queries and of keys.  A value that does not depend on one of them gets a coordinate that it does not have."""
    frame = (None,) * (len(shape(node)) - 2) + (QUERIES, KEYS) if frame is None else frame
    query, key = (frame.index(axis) if axis in frame else _ABSENT + axis for axis in (QUERIES, KEYS))
    return coordinate(query), coordinate(key)


_ABSENT = 100  # no tensor has so many dims


def shows_all(node: fx.Node, negated: bool, algebra: IndexAlgebra) -> bool:
    """Whether a condition holds for all coordinates, whatever the length: `c3 <= c2 + S` where there are S + 1 keys."""
    try:
        value = as_condition(_value(node, algebra))
    except Unproven:
        return False
    last = {coordinate(dim): size - 1 for dim, size in enumerate(shape(node))}
    return all(_always(term, last) for term in sympy.And.make_args(sympy.Not(value) if negated else value))


def _always(term: sympy.Basic, last: Mapping[sympy.Symbol, sympy.Expr]) -> bool:
    """Whether a comparison of coordinates holds for all that there are, from 0 to the last."""
    if not isinstance(term, sympy.Le | sympy.Lt | sympy.Ge | sympy.Gt):
        return term is sympy.true
    lower, upper = (term.lhs, term.rhs) if isinstance(term, (sympy.Le, sympy.Lt)) else (term.rhs, term.lhs)
    most = sympy.expand(cast(sympy.Expr, lower) - cast(sympy.Expr, upper))
    for place, end in last.items():
        slope = sympy.expand(most).coeff(place)
        if not isinstance(slope, sympy.Integer) or sympy.expand(most - slope * place).has(place):
            return False
        most = most.subs(place, end if slope > 0 else 0)
    most = sympy.expand(cast(sympy.Expr, most))
    return bool(most.is_negative if isinstance(term, (sympy.Lt, sympy.Gt)) else most.is_nonpositive)


def _visible(value: Value, mask: fx.Node) -> Boolean:
    """Where the mask lets the query see: a boolean as it is, an additive mask where it is 0 rather than hidden."""
    if is_condition(value):
        return value
    cases = branches(as_number(value))
    for amount, _ in cases:
        if amount != 0 and not (amount.is_number and amount < HIDDEN_BELOW):
            raise Unproven(mask, f"an additive mask that adds {amount}")
    return first_true((sympy.true if amount == 0 else sympy.false, condition) for amount, condition in cases)


def _hides_softly(value: Value) -> bool:
    """Whether a hidden score is a large negative number instead of none at all."""
    return not is_condition(value) and any(amount not in (0, -sympy.oo) for amount, _ in branches(as_number(value)))


def _negative(side: int | None) -> bool:
    return side is not None and side < 0


def _band(visible: Boolean, query: sympy.Symbol, key: sympy.Symbol, mask: fx.Node) -> Band:
    if visible.has(sympy.Or):
        visible = cast(Boolean, sympy.simplify_logic(visible, form="cnf", deep=False))
    band = FULL
    for term in sympy.And.make_args(visible):
        band &= _bound(term, query, key, mask)
    return band


def _bound(term: sympy.Basic, query: sympy.Symbol, key: sympy.Symbol, mask: fx.Node) -> Band:
    """One comparison as bound: `a*(key - query) + b  <=  0` with integers a and b."""
    if term is sympy.true:
        return FULL
    if not isinstance(term, _Comparison):
        raise Unproven(mask, f"the condition {term} is not a bound on key - query")
    difference = cast(sympy.Expr, sympy.expand(cast(sympy.Expr, term.lhs) - cast(sympy.Expr, term.rhs)))
    band = FULL
    for side in _without_abs(difference, term):
        slope = side.coeff(key)
        rest = sympy.expand(side - slope * (key - query))
        if not (isinstance(slope, sympy.Integer) and abs(slope) == 1 and isinstance(rest, sympy.Integer)):
            raise Unproven(mask, f"the condition {term} is not a bound on key - query")
        band &= _as_band(type(term), int(slope), int(rest))
    return band


def _without_abs(difference: sympy.Expr, term: _Comparison) -> list[sympy.Expr]:
    """`|d| + b <= 0` is `d + b <= 0` and `-d + b <= 0`; the other way round it would be an or."""
    found = list(difference.atoms(sympy.Abs))
    if len(found) != 1:
        return [difference]
    factor = cast(sympy.Expr, difference.coeff(found[0]))
    upper = factor if isinstance(term, (sympy.Le, sympy.Lt)) else -factor
    if upper != 1 or isinstance(term, sympy.Eq):
        return [difference]  # which is no bound
    inner = found[0].args[0]
    return [cast(sympy.Expr, sympy.expand(difference.subs(found[0], side))) for side in (inner, -inner)]


def _as_band(relation: type[_Comparison], slope: int, rest: int) -> Band:
    """`slope * (j - i) + rest  ⋚  0`, slope ±1."""
    if relation is sympy.Eq:
        return Band(left=slope * rest, right=-slope * rest)
    if slope < 0:
        relation, rest = _FLIPPED[relation], -rest
    if relation in (sympy.Le, sympy.Lt):  # j - i <= -rest
        return Band(right=-rest - (relation is sympy.Lt))
    return Band(left=rest - (relation is sympy.Gt))  # j - i >= -rest


_FLIPPED: dict[type[_Comparison], type[_Comparison]] = {
    sympy.Le: sympy.Ge,
    sympy.Ge: sympy.Le,
    sympy.Lt: sympy.Gt,
    sympy.Gt: sympy.Lt,
}
