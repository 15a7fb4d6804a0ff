"""The index algebra: what an index-domain value is, as a function of its own coordinates.

A value built from `arange`, constants, comparisons and gathers of one by another is followed symbolically, so that
transformers' mask for an ordinary decoder (diff, cumsum, gathers, `<=`, `==`, `and`, expand) reduces to what it is:

    index  = aten.index(positions, [batch, queries])   c2
    index1 = aten.index(positions, [batch, keys])      c3
    le     = aten.le(index1, index)                    c3 <= c2          → causal

Coordinates are the symbols c0, c1, …; a dim of size 1 has none.  What cannot be followed is `Opaque`, with the node to
blame.  Nothing here looks at values: what it says holds for every length and batch, positions in float32 up to 2^24.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard, cast

import sympy
import torch
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean, BooleanAtom, BooleanFunction
from torch import fx

from sp.passes.fxtools import expression, op_name, positional, shape, tensor
from sp.score import HIDDEN_BELOW

Value = sympy.Expr | Boolean


class Opaque(Exception):
    """This node's value is not a known function of its coordinates."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


class NotWholeError(Exception):
    """A constant argument that is no whole number, no infinity and no truth value."""


def is_condition(value: Value) -> TypeGuard[Boolean]:
    """Whether a value is true or false.  (sympy's own Symbol counts as Boolean; coordinates are numbers.)"""
    return isinstance(value, (BooleanAtom, BooleanFunction, Relational))


def as_number(value: Value) -> sympy.Expr:
    return sympy.Piecewise((1, value), (0, True)) if is_condition(value) else cast(sympy.Expr, value)


def as_condition(value: Value) -> Boolean:
    if is_condition(value):
        return value
    cases = branches(cast(sympy.Expr, value))
    return first_true((cast(Boolean, sympy.Ne(amount, 0)), when) for amount, when in cases)


def first_true(cases: Iterable[tuple[Boolean, Boolean]]) -> Boolean:
    """The truth value of the first case whose condition holds."""
    found: Boolean = sympy.false
    earlier: Boolean = sympy.false
    for truth, condition in cases:
        found = sympy.Or(found, sympy.And(condition, sympy.Not(earlier), truth))
        earlier = sympy.Or(earlier, condition)
    return found


def branches(value: sympy.Expr) -> list[tuple[sympy.Expr, Boolean]]:
    """A value case by case: the amount of the first condition that holds; the last one always does."""
    if isinstance(value, sympy.Piecewise):
        return [(cast(sympy.Expr, amount), cast(Boolean, condition)) for amount, condition in cast(_Cases, value.args)]
    return [(value, sympy.true)]


_Cases = Iterable[tuple[sympy.Basic, sympy.Basic]]


def exact(value: sympy.Expr, dtype: torch.dtype, node: fx.Node) -> sympy.Expr:
    """`value`, once it is certain that `dtype` holds it: positions in 16 bits are rounded, in 8 they wrap around."""
    for amount, _ in branches(value):
        if amount is sympy.nan:
            raise Opaque(node, "it is not a number (0 × inf)")
        if amount.is_number:
            held = amount.is_infinite or abs(amount) <= EXACT_BELOW.get(dtype, 0) or _vast(amount, dtype)
        else:
            held = _degree(amount) <= _DEGREES.get(dtype, 0)
        if not held or (amount.is_negative and not dtype.is_signed):
            raise Opaque(node, f"{amount} in {str(dtype).removeprefix('torch.')} is rounded or wraps around")
    return value


def _vast(amount: sympy.Expr, dtype: torch.dtype) -> bool:
    """A constant that only hides (finfo.min): how it is rounded makes no difference."""
    return dtype.is_floating_point and bool(amount < HIDDEN_BELOW)


def _degree(amount: sympy.Expr) -> int:
    """In positions and sizes together."""
    plain = cast(sympy.Expr, amount.replace(sympy.Abs, lambda inner: inner))
    plain = cast(sympy.Expr, plain.replace(lambda part: part.is_Function, lambda _: sympy.Dummy()))  # S // 2 <= S
    return sympy.Poly(plain).total_degree() if plain.is_polynomial() else sys.maxsize


# Whole numbers up to these are exact.
EXACT_BELOW = {
    torch.float64: 2**53,
    torch.float32: 2**24,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
    torch.int64: 2**63 - 1,
    torch.int32: 2**31 - 1,
    torch.int16: 2**15 - 1,
    torch.int8: 2**7 - 1,
    torch.uint8: 2**8 - 1,
}
# Of what degree in positions and sizes: S × S overflows 32 bits at S = 46,341.
_DEGREES = {torch.float64: 2, torch.int64: 2, torch.float32: 1, torch.int32: 1}


def coordinate(dim: int) -> sympy.Symbol:
    return sympy.Symbol(f"c{dim}", integer=True, nonnegative=True)


class IndexAlgebra:
    """Follows values back to their sources, each node once."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = rules
        self.known: dict[fx.Node, Value | Opaque] = {}

    def value(self, node: object) -> Value:
        """The value of a node (or constant argument) as a function of its coordinates; raises Opaque."""
        if not isinstance(node, fx.Node):
            return _constant(node)
        if node not in self.known:
            try:
                self.known[node] = self._follow(node)
            except Opaque as opaque:
                self.known[node] = opaque
            except NotWholeError as error:
                self.known[node] = Opaque(node, str(error))
        found = self.known[node]
        if isinstance(found, Opaque):
            raise found
        return found

    def _follow(self, node: fx.Node) -> Value:
        size = node.meta.get("val")
        if isinstance(size, torch.SymInt):
            return expression(size)
        if (constant := _traced_constant(node)) is not None:
            return _constant(constant)
        if node.op != "call_function":
            kind = "an input" if node.op == "placeholder" else "a parameter or buffer"
            raise Opaque(node, f"{node.name} is {kind}: its values are not known when the graph is made")
        rule = self.rules.get(op_name(node).removeprefix("aten."))
        if rule is None or tensor(node) is None or not isinstance(node.target, torch._ops.OpOverload):
            raise Opaque(node, f"the index algebra does not know {op_name(node)}")
        value = rule(self, node, positional(node))
        single = {dim: 0 for dim, size in enumerate(shape(node)) if size == 1}
        value = substitute(value, single) if single else value
        if node.meta["val"].dtype == torch.bool:
            return as_condition(value)
        return exact(as_number(value), node.meta["val"].dtype, node)

    def aligned(self, operand: object, node: fx.Node) -> Value:
        """The value of an operand in the coordinates of `node`, under broadcasting."""
        value = self.value(operand)
        if tensor(operand) is None:
            return value
        sizes = shape(cast(fx.Node, operand))
        shift = len(shape(node)) - len(sizes)
        return rename(value, {dim: dim + shift for dim in range(len(sizes))})


Rule = Callable[[IndexAlgebra, fx.Node, tuple[object, ...]], Value]


def _traced_constant(node: fx.Node) -> object:
    """The number that `torch.tensor(0.0)` inside a forward left in the graph, None if this is anything else."""
    if node.op != "get_attr" or any(op_name(user) != "aten.lift_fresh_copy" for user in node.users):
        return None
    held: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        held = getattr(held, part)
    return held.item() if isinstance(held, torch.Tensor) and held.numel() == 1 else None


def _constant(value: object) -> Value:
    if isinstance(value, bool):
        return sympy.true if value else sympy.false
    if isinstance(value, (int, float)) and math.isinf(value):
        return sympy.oo if value > 0 else -sympy.oo
    if isinstance(value, (int, float)) and not math.isnan(value) and value == int(value):
        return sympy.Integer(int(value))
    raise NotWholeError(f"{value!r} is no whole number")


def rename(value: Value, dims: Mapping[int, int]) -> Value:
    return substitute(value, {dim: coordinate(new) for dim, new in dims.items()})


def substitute(value: Value, by: Mapping[int, Value | int]) -> Value:
    return cast(Value, value.xreplace({coordinate(dim): sympy.sympify(new) for dim, new in by.items()}))
