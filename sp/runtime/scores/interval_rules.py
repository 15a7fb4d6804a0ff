"""For each operator of a score, the rule that gives the interval of its result from those of its operands.

A rule answers None where it knows nothing; `intervals.py` then takes the widest interval of the result's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sp.runtime.scores.evaluate import call
from sp.runtime.scores.interval import Arguments, Interval, as_interval, monotone, sample
from sp.runtime.scores.op_table import base_of
from sp.score import LOOKUP

Rule = Callable[[str, Arguments], Interval | None]


def _arithmetic(op: str, a: Arguments) -> Interval | None:
    """Sums, differences and products.  Integers wrap around where they overflow: nothing is known there."""
    found = monotone(op, a)
    if found.low.is_floating_point():
        # Whether a factor is rounded before the sum differs between the instructions of one processor.
        return found if a.get("alpha", 1) in (1, -1) else None
    if found.low.dtype == torch.bool:
        return found
    exact = monotone(op, {key: _doubled(value) for key, value in a.items()})
    limits = torch.iinfo(found.low.dtype)
    room = 1 - 2**-40 if found.low.dtype == torch.int64 else 1  # for the rounding of doubles
    return found.or_anything((exact.low < limits.min * room) | (exact.high > limits.max * room))


def _doubled(value: Any) -> Any:
    return Interval(value.low.double(), value.high.double()) if isinstance(value, Interval) else value


def _product(op: str, a: Arguments) -> Interval | None:
    """nan where one factor may be infinite and the other 0."""
    found = _arithmetic(op, a)
    if found is None or not found.low.is_floating_point():
        return found
    one, other = (_rounded(a[key], found.low.dtype) for key in ("self", "other"))
    return found.or_anything(_infinite(one) & _spans_zero(other) | _infinite(other) & _spans_zero(one))


def _rounded(value: Any, dtype: torch.dtype) -> Interval:
    """An operand in the dtype of the arithmetic, in which a large integer may be infinite and a small number 0."""
    value = as_interval(value)
    return Interval(value.low.to(dtype), value.high.to(dtype))


def _infinite(value: Interval) -> Tensor:
    return value.low.isinf() | value.high.isinf()


def _spans_zero(value: Interval) -> Tensor:
    return ~((value.low > 0) | (value.high < 0))


def _quotient(op: str, a: Arguments) -> Interval | None:
    """Nothing is known where the divisor may be 0."""
    if base_of(op) == "floor_divide" or a.get("rounding_mode") is not None:
        return _whole_quotient(op, a)
    unknown = _spans_zero(_rounded(a["other"], sample(op, a).dtype))
    return monotone(op, {**a, "other": _nonzero(a["other"], unknown)}).or_anything(unknown)


def _whole_quotient(op: str, a: Arguments) -> Interval | None:
    """Rounded, of integers.  Of floats it is computed by a remainder, which is not monotone."""
    dividend, divisor = a["self"], as_interval(a["other"])
    if not (_is_whole(dividend) and _is_whole(divisor)):
        return None
    least = dividend.low == torch.iinfo(dividend.low.dtype).min  # whose quotient by -1 overflows
    zero = _spans_zero(divisor)
    safe = {**a, "self": dividend.replaced(least, 0), "other": _nonzero(a["other"], zero)}
    return monotone(op, safe).or_anything(least | zero)


def _nonzero(divisor: Any, unknown: Tensor) -> Any:
    """A divisor by which integers can be divided; 1 where it may be 0."""
    return divisor.replaced(unknown, 1) if isinstance(divisor, Interval) else divisor or 1


def _is_whole(value: Interval) -> bool:
    return not value.low.is_floating_point() and value.low.dtype != torch.bool


def _remainder(op: str, a: Arguments) -> Interval | None:
    """Of integers by a positive number: between their ends where these lie in one period, else the whole period."""
    period, dividend = a["other"], a["self"]
    if not isinstance(period, int) or period <= 0 or not isinstance(dividend, Interval) or not _is_whole(dividend):
        return None
    low, high = (call(op, [end, period], {}) for end in (dividend.low, dividend.high))
    turns = (end.div(period, rounding_mode="floor") for end in (dividend.low, dividend.high))
    alone = torch.eq(*turns)
    return Interval(torch.where(alone, low, 0), torch.where(alone, high, period - 1))


def _absolute(op: str, a: Arguments) -> Interval | None:
    """0 where the ends have different signs, unless something negative has come out: an integer without counterpart."""
    found = _arithmetic(op, a)
    if found is None:
        return None
    across = (a["self"].low < 0) & (a["self"].high > 0) & (found.low > 0)
    return Interval(found.low.masked_fill(across, 0), found.high)


def _compare(op: str, a: Arguments) -> Interval:
    """What is sure, and what is not excluded; with nan nothing is sure and nothing excluded."""
    one, other = a["self"], _ends_of(a["other"])
    match base_of(op):
        case "lt":
            return Interval(torch.lt(one.high, other[0]), ~torch.ge(one.low, other[1]))
        case "le":
            return Interval(torch.le(one.high, other[0]), ~torch.gt(one.low, other[1]))
        case "gt":
            return Interval(torch.gt(one.low, other[1]), ~torch.le(one.high, other[0]))
        case "ge":
            return Interval(torch.ge(one.low, other[1]), ~torch.lt(one.high, other[0]))
        case _:
            sure = torch.eq(one.low, other[1]) & torch.eq(one.high, other[0])
            possible = ~(torch.gt(one.low, other[1]) | torch.lt(one.high, other[0]))
            return Interval(sure, possible) if base_of(op) == "eq" else Interval(~possible, ~sure)


def _ends_of(value: Any) -> tuple[Any, Any]:
    return (value.low, value.high) if isinstance(value, Interval) else (value, value)


def _truth(value: Any) -> Interval:
    """Whether it is not 0; nan is not."""
    value = as_interval(value)
    if value.low.dtype == torch.bool:
        return value
    return Interval(~_spans_zero(value), ~((value.low == 0) & (value.high == 0)))


def _logic(op: str, a: Arguments) -> Interval | None:
    """`logical_…`, and `bitwise_…` of truth values."""
    word = base_of(op)
    values = [as_interval(a[key]) for key in ("self", "other") if key in a]
    if word.startswith("bitwise") and any(value.low.dtype != torch.bool for value in values):
        return None
    one, other = (_truth(value) for value in (values[0], values[-1]))
    match word.partition("_")[2]:
        case "not":
            return Interval(~one.high, ~one.low)
        case "and":
            return Interval(one.low & other.low, one.high & other.high)
        case "or":
            return Interval(one.low | other.low, one.high | other.high)
        case _:
            known = (one.low == one.high) & (other.low == other.high)
            return Interval(known & (one.low ^ other.low), ~known | (one.low ^ other.low))


def _select(op: str, a: Arguments) -> Interval | None:
    """`where` and `masked_fill`: one of both where the condition is sure, else around both."""
    key = "condition" if "condition" in a else "mask"
    condition = a[key]
    chosen = _pick(op, {**a, key: torch.ones_like(condition.low)})
    others = _pick(op, {**a, key: torch.zeros_like(condition.low)})
    sure, possible = condition.low, condition.high
    low, high = torch.minimum(chosen.low, others.low), torch.maximum(chosen.high, others.high)
    low, high = torch.where(possible, low, others.low), torch.where(possible, high, others.high)
    return Interval(torch.where(sure, chosen.low, low), torch.where(sure, chosen.high, high))


def _pick(op: str, a: Arguments) -> Interval:
    """With a condition that is known; all low ends give the low end."""
    lows, highs = ({key: _ends_of(value)[side] for key, value in a.items()} for side in (0, 1))
    return Interval(call(op, [], lows), call(op, [], highs))


def _cast(op: str, a: Arguments) -> Interval | None:
    """Rounding and truncation are monotone, as long as the dtype holds the value."""
    value, dtype = a["self"], sample(op, a).dtype
    if dtype == torch.bool:
        return _truth(value)
    if dtype.is_floating_point or value.low.dtype == torch.bool:
        return monotone(op, a)
    limits = torch.iinfo(dtype)
    wide = value if value.low.is_floating_point() else Interval(value.low.long(), value.high.long())
    held = (wide.low >= limits.min) & (wide.high < limits.max)
    return monotone(op, {**a, "self": value.replaced(~held, 0)}).or_anything(~held)


def _squashed(op: str, a: Arguments) -> Interval:
    """`tanh` and `sigmoid`, rounded this way or that, stay within their limits."""
    like, unknown = sample(op, a), a["self"].low.isnan()
    least = -1 if base_of(op) == "tanh" else 0
    return Interval(torch.full_like(like, least), torch.ones_like(like)).or_anything(unknown)


def _constant(op: str, a: Arguments) -> Interval:
    value = sample(op, a)
    return Interval(value, value)


def _lookup(op: str, a: Arguments) -> Interval:
    """Between the ends of each head's column; the table's interval is [1, heads]."""
    table = a["table"]
    return Interval(table.low.reshape(1, -1, 1, 1), table.high.reshape(1, -1, 1, 1))


_MONOTONE = ("minimum", "maximum", "clamp", "clamp_min", "clamp_max", "relu", "floor", "ceil", "trunc", "round", "sqrt")

_OPS: tuple[tuple[Rule, Iterable[str]], ...] = (
    (_arithmetic, ("add", "sub", "rsub", "neg")),
    (monotone, (*_MONOTONE, "clone", "detach")),
    (_compare, ("eq", "ne", "lt", "le", "gt", "ge")),
    (_constant, ("full_like", "ones_like", "zeros_like")),
    (_logic, [f"{kind}_{word}" for kind in ("logical", "bitwise") for word in ("not", "and", "or", "xor")]),
    (_quotient, ("div", "floor_divide")),
    (_squashed, ("tanh", "sigmoid")),
    (_select, ("where", "masked_fill")),
    *((_product, ("mul",)), (_absolute, ("abs",)), (_remainder, ("remainder",))),
    *((_cast, ("_to_copy",)), (_lookup, (LOOKUP,))),
)
RULES: dict[str, Rule] = {op: rule for rule, ops in _OPS for op in ops}
