"""Proof that a mask operand is a band of positions: the index algebra's value, read as bounds on `j - i`.

c3 <= c2                                   → causal
(c3 <= c2) & (c3 > c2 - 128)               → window(127, 0)
true                                       → full
Piecewise((0, c3 <= c2), (-oo, true))      → causal            additive masks
"""

from __future__ import annotations

from typing import cast

import sympy
from sympy.logic.boolalg import Boolean, BooleanTrue
from torch import fx

from sp.mask import CAUSAL, FULL, Band
from sp.passes.fxtools import refusal, shape
from sp.passes.index_algebra import IndexAlgebra, Opaque, Value, coordinate, is_condition

# Every finite value that models add to hide a position (finfo.min of the 16-bit formats and wider) is below this.
_HIDDEN_BELOW = -60000


class Unproven(Exception):
    """The mask is not provably a band; `node` is to blame."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


def prove_mask(mask: fx.Node | None, is_causal: bool, algebra: IndexAlgebra) -> Band:
    """The band that the mask operand of an attention describes, whatever the length; raises Unproven."""
    band = CAUSAL if is_causal else FULL
    if mask is None:
        return band
    try:
        value = algebra.value(mask)
    except Opaque as opaque:
        raise Unproven(opaque.node, opaque.why) from opaque
    ndim = len(shape(mask))
    visible = _visible(value, mask)
    return band & _band(visible, coordinate(ndim - 2), coordinate(ndim - 1), mask)


def _visible(value: Value, mask: fx.Node) -> Boolean:
    """Where the mask lets the query see: a boolean as it is, an additive mask where it is 0 rather than hidden."""
    if is_condition(value):
        return value
    if value == 0:
        return sympy.true
    if not isinstance(value, sympy.Piecewise):
        raise Unproven(mask, f"an additive mask of value {value}")
    seen: list[Boolean] = []
    for amount, condition in value.args:
        if amount == 0:
            seen.append(cast(Boolean, condition))
        elif not (amount.is_number and amount < _HIDDEN_BELOW):
            raise Unproven(mask, f"an additive mask that adds {amount}")
    return _first_match(value, seen)


def _first_match(value: sympy.Piecewise, seen: list[Boolean]) -> Boolean:
    """A Piecewise takes its first true branch, so a later zero branch counts only where no earlier one holds."""
    visible: Boolean = sympy.false
    earlier: Boolean = sympy.false
    for amount, condition in value.args:
        if amount == 0:
            visible = cast(Boolean, sympy.Or(visible, sympy.And(condition, sympy.Not(earlier))))
        earlier = cast(Boolean, sympy.Or(earlier, condition))
    return cast(Boolean, sympy.simplify_logic(visible)) if seen else sympy.false


def _band(visible: Boolean, query: sympy.Symbol, key: sympy.Symbol, mask: fx.Node) -> Band:
    if isinstance(visible, BooleanTrue):
        return FULL
    band = FULL
    for term in sympy.And.make_args(visible):
        band &= _bound(term, query, key, mask)
    return band


def _bound(term: sympy.Basic, query: sympy.Symbol, key: sympy.Symbol, mask: fx.Node) -> Band:
    """One comparison as bound: `a*(key - query) + b  <=  0` with integers a and b."""
    if not isinstance(term, (sympy.Le, sympy.Lt, sympy.Ge, sympy.Gt, sympy.Eq)):
        raise Unproven(mask, f"the condition {term} is not a bound on key - query")
    difference = sympy.expand(term.lhs - term.rhs)
    slope, rest = difference.coeff(key), sympy.expand(difference - difference.coeff(key) * (key - query))
    if not (isinstance(slope, sympy.Integer) and abs(slope) == 1 and isinstance(rest, sympy.Integer)):
        raise Unproven(mask, f"the condition {term} is not a bound on key - query")
    return _as_band(type(term), int(slope), int(rest))


def _as_band(relation: type[sympy.Basic], slope: int, rest: int) -> Band:
    """`slope * (j - i) + rest  ⋚  0`, slope ±1."""
    if relation is sympy.Eq:
        return Band(left=slope * rest, right=-slope * rest)
    flipped = {sympy.Le: sympy.Ge, sympy.Ge: sympy.Le, sympy.Lt: sympy.Gt, sympy.Gt: sympy.Lt}
    if slope < 0:
        relation, rest = flipped[relation], -rest
    if relation in (sympy.Le, sympy.Lt):  # j - i <= -rest
        return Band(right=-rest - (relation is sympy.Lt))
    return Band(left=rest - (relation is sympy.Gt))  # j - i >= -rest


def explain(unproven: Unproven, attention: fx.Node):
    """The refusal for an attention whose mask could not be proven."""
    return refusal(
        attention,
        f"its mask is not proven to depend on key - query alone: {unproven.why} (at {unproven.node.name})",
        "use is_causal=True, or a mask built from positions by comparisons; padding and packing masks come later",
    )
