"""Which operators the lines of a `sp.score.Score` may call, and which of them let gradients through.

Passes ask here before they write a line, the evaluation asserts it: one table for both.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from sp.runtime.scores.derivatives import DERIVATIVES
from sp.score import LOOKUP

# Element by element too, but not tagged as such by torch (by some of its versions).
_ELEMENTWISE = frozenset(
    {
        *("where", "masked_fill", "rsub", "floor_divide", "absolute"),
        *("_to_copy", "to", "clone", "alias", "detach"),
        *("full_like", "ones_like", "zeros_like"),
        *("subtract", "multiply", "divide", "true_divide", "negative"),
        *("less", "less_equal", "greater", "greater_equal", "not_equal", "__and__", "__or__", "__xor__"),
    }
)
_SYNONYMS = dict(
    pair.split("=")
    for pair in (
        *("subtract=sub", "multiply=mul", "divide=div", "true_divide=div", "negative=neg", "absolute=abs"),
        *("less=lt", "less_equal=le", "greater=gt", "greater_equal=ge", "not_equal=ne"),
        *("__and__=bitwise_and", "__or__=bitwise_or", "__xor__=bitwise_xor"),
        *("clip=clamp", "to=_to_copy", "alias=clone"),
    )
)


def base_of(op: str) -> str:
    """What an operator computes, whatever its overload and synonym: 'sub' of `subtract.Scalar`."""
    base = op.partition(".")[0]
    return _SYNONYMS.get(base, base)


@lru_cache(maxsize=1024)
def find_op(op: str) -> torch._ops.OpOverload | None:
    """The overload of aten called `op`, as 'eq.Tensor'; None if a line of a score may not call it.

    It must work element by element on tensors that broadcast, write to none of them, and draw no random numbers."""
    base, _, overload = op.partition(".")
    found = getattr(getattr(torch.ops.aten, base, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload):
        return None
    schema = found._schema
    pure = not schema.is_mutable and torch.Tag.nondeterministic_seeded not in found.tags
    one = [str(result.type) for result in schema.returns] == ["Tensor"]
    elementwise = base in _ELEMENTWISE or torch.Tag.pointwise in found.tags
    return found if pure and one and elementwise else None


def is_evaluable(op: str) -> bool:
    """Whether a line of a score may call `op`: `lookup`, or an overload of aten as `find_op` wants it."""
    return op == LOOKUP or find_op(op) is not None


def takes_tensors(op: str) -> tuple[bool, ...]:
    """Which arguments of `op` may be tensors, in order; the others are numbers, words and truth values."""
    found = find_op(op)
    assert found is not None, f"a score may not call {op}"
    return tuple("Tensor" in str(argument.type) for argument in found._schema.arguments)


def has_gradient(op: str) -> bool:
    """Whether a value that trains, or the score `s`, may be an operand of `op`."""
    return base_of(op) in DERIVATIVES


def names_of(op: str) -> tuple[str, ...]:
    """The names of the arguments of `op`, in order."""
    if op == LOOKUP:
        return ("table", "index")
    found = find_op(op)
    assert found is not None, f"a score may not call {op}"
    return tuple(argument.name for argument in found._schema.arguments)
