"""Derivatives of the operators of a score: for each operator and operand, what its gradient is.

`torch.autograd` does not work inside of a custom operator, so the rules are written out; the tests hold each against
autograd.  A rule returns the gradient in the frame of the result, `gradients.py` sums it to the operand's shape.
Where an operator has a row and an operand is missing in it, that operand is not differentiable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sp.score import LOOKUP

Arguments = Mapping[str, Any]  # the arguments of a call by name: tensors, numbers, words
Rule = Callable[[Tensor, Tensor, Arguments], Tensor]  # of: gradient of the result, result, arguments


def _where(grad: Tensor, condition: Tensor) -> Tensor:
    """The gradient where the condition holds.  Not a product: 0 × inf is no number."""
    return torch.where(condition, grad, 0.0)


def _same(grad: Tensor, out: Tensor, a: Arguments) -> Tensor:
    return grad


def _alpha(grad: Tensor, a: Arguments) -> Tensor:
    factor = a.get("alpha", 1)
    return grad if factor == 1 else grad * factor


def _divided(grad: Tensor, out: Tensor, a: Arguments) -> Tensor:
    return torch.zeros_like(grad) if a.get("rounding_mode") else grad / a["other"]


def _divisor(grad: Tensor, out: Tensor, a: Arguments) -> Tensor:
    return torch.zeros_like(grad) if a.get("rounding_mode") else -grad * out / a["other"]


def _inside(grad: Tensor, out: Tensor, a: Arguments) -> Tensor:
    """Of `clamp` and its halves: where the operand is between its bounds, which count as inside."""
    low, high = a.get("min"), a.get("max")
    inside = torch.ones_like(a["self"], dtype=torch.bool)
    inside = inside if low is None else inside & (a["self"] >= low)
    return _where(grad, inside if high is None else inside & (a["self"] <= high))


def _at_min(grad: Tensor, out: Tensor, a: Arguments) -> Tensor:
    below, high = a["self"] < a["min"], a.get("max")
    return _where(grad, below if high is None else below & (a["min"] < high))


def _at_max(grad: Tensor, out: Tensor, a: Arguments) -> Tensor:
    low = a.get("min")
    return _where(grad, (a["self"] > a["max"]) if low is None else (a["self"] > a["max"]) | (a["max"] < low))


def _of_extreme(operand: str) -> Rule:
    """Of `maximum` and `minimum`: to the operand that is the result, half to each of two equal ones."""
    other = "other" if operand == "self" else "self"
    return lambda grad, out, a: _where(torch.where(a[other] == a[operand], grad / 2, grad), a[operand] == out)


def _power(grad: Tensor, out: Tensor, a: Arguments) -> Tensor:
    exponent = a["exponent"]
    assert not isinstance(exponent, Tensor), "only powers by a number have a gradient"
    return torch.zeros_like(grad) if exponent == 0 else grad * (exponent * a["self"].pow(exponent - 1))


def _table(grad: Tensor, out: Tensor, a: Arguments) -> Tensor:
    """`lookup`: each row of the table gets the gradients of all places that picked it."""
    rows, heads = a["table"].shape
    index_N = a["index"].flatten() % rows
    grad_HN = grad.transpose(0, 1).reshape(heads, -1)
    return grad.new_zeros(heads, rows).index_add_(1, index_N, grad_HN).t()


def _none(grad: Tensor, out: Tensor, a: Arguments) -> Tensor:
    return torch.zeros_like(grad)


def _of_self(rule: Rule) -> dict[str, Rule]:
    return {"self": rule}


_STEPS = ("floor", "ceil", "trunc", "round", "sign", "sgn", "floor_divide", "detach")
_CONSTANT = ("full_like", "ones_like", "zeros_like")
_TRUTHS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf")
_LOGIC = [f"{kind}_{word}" for kind in ("logical", "bitwise") for word in ("not", "and", "or", "xor")]

DERIVATIVES: dict[str, dict[str, Rule]] = {
    "add": {"self": _same, "other": lambda grad, out, a: _alpha(grad, a)},
    "sub": {"self": _same, "other": lambda grad, out, a: -_alpha(grad, a)},
    "rsub": {"self": lambda grad, out, a: -_alpha(grad, a), "other": _same},
    "mul": {"self": lambda grad, out, a: grad * a["other"], "other": lambda grad, out, a: grad * a["self"]},
    "div": {"self": _divided, "other": _divisor},
    "neg": _of_self(lambda grad, out, a: -grad),
    "tanh": _of_self(lambda grad, out, a: grad * (1 - out * out)),
    "exp": _of_self(lambda grad, out, a: grad * out),
    "exp2": _of_self(lambda grad, out, a: grad * out * math.log(2)),
    "sigmoid": _of_self(lambda grad, out, a: grad * out * (1 - out)),
    "log": _of_self(lambda grad, out, a: grad / a["self"]),
    "log2": _of_self(lambda grad, out, a: grad / (a["self"] * math.log(2))),
    "log1p": _of_self(lambda grad, out, a: grad / (1 + a["self"])),
    "sqrt": _of_self(lambda grad, out, a: grad / (2 * out)),
    "rsqrt": _of_self(lambda grad, out, a: grad * out.pow(3) * -0.5),
    "reciprocal": _of_self(lambda grad, out, a: -grad * out * out),
    "square": _of_self(lambda grad, out, a: grad * a["self"] * 2),
    "abs": _of_self(lambda grad, out, a: grad * a["self"].sign()),
    "relu": _of_self(lambda grad, out, a: _where(grad, out > 0)),
    "pow": _of_self(_power),
    "clamp": {"self": _inside, "min": _at_min, "max": _at_max},
    "clamp_min": {"self": _inside, "min": _at_min},
    "clamp_max": {"self": _inside, "max": _at_max},
    "maximum": {"self": _of_extreme("self"), "other": _of_extreme("other")},
    "minimum": {"self": _of_extreme("self"), "other": _of_extreme("other")},
    "where": {
        "self": lambda grad, out, a: _where(grad, a["condition"]),
        "other": lambda grad, out, a: _where(grad, a["condition"].logical_not()),
    },
    "masked_fill": {
        "self": lambda grad, out, a: _where(grad, a["mask"].logical_not()),
        "value": lambda grad, out, a: _where(grad, a["mask"]),
    },
    "_to_copy": _of_self(_same),
    "clone": _of_self(_same),
    LOOKUP: {"table": _table},
    **{op: {"self": _none, "other": _none} for op in (*_STEPS, *_CONSTANT, *_TRUTHS, *_LOGIC)},
}
