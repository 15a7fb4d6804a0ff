"""The ops that the index algebra can follow: one short rule each, from operand values to the op's value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch import fx

from sp.passes.fxtools import normal_dim, shape, tensor
from sp.passes.index_algebra import (
    IndexAlgebra,
    Opaque,
    Rule,
    Value,
    as_condition,
    as_number,
    branches,
    coordinate,
    exact,
    first_true,
)
from sp.passes.index_moves import MOVES


def _arange(algebra: IndexAlgebra, node: fx.Node, _: tuple[object, ...]) -> Value:
    bounds = list(node.args)
    start = algebra.value(bounds[0]) if len(bounds) > 1 else sympy.Integer(0)
    step = algebra.value(bounds[2]) if len(bounds) > 2 else sympy.Integer(1)
    return cast(Value, as_number(start) + as_number(step) * coordinate(0))


def _filled(position: int) -> Rule:
    def rule(algebra: IndexAlgebra, _: fx.Node, args: tuple[object, ...]) -> Value:
        return algebra.value(args[position])

    return rule


def _constant(number: int) -> Rule:
    return lambda algebra, node, args: sympy.Integer(number)


def _same(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
    """Copies and casts: `aten.to` and its kind."""
    source, dtype = tensor(args[0]), node.meta["val"].dtype
    if source is not None and source.dtype.is_floating_point and not (dtype.is_floating_point or dtype == torch.bool):
        raise Opaque(node, "a cast from float to integer rounds")
    return algebra.value(args[0])


_MOST_CASES = 16


def _case_by_case(
    combine: Callable[..., Any], operands: Sequence[sympy.Expr], node: fx.Node
) -> list[tuple[Any, Boolean]]:
    """`combine` of values that may be Piecewise: the result of each pair of branches, the first true one counts."""
    cases = list(itertools.product(*(branches(operand) for operand in operands)))
    if len(cases) > _MOST_CASES:
        raise Opaque(node, f"it distinguishes {len(cases)} cases")
    return [(combine(*(amount for amount, _ in case)), sympy.And(*(when for _, when in case))) for case in cases]


def _arithmetic(combine: Callable[..., object]) -> Rule:
    """`combine(a, b)` or, where the op has a factor, `combine(a, b, alpha)`."""

    def rule(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
        operands = [as_number(algebra.aligned(operand, node)) for operand in args]
        return cast(Value, sympy.Piecewise(*_case_by_case(combine, operands, node)))

    return rule


def _comparison(relation: Callable[[sympy.Expr, sympy.Expr], object]) -> Rule:
    def rule(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
        a, b = (as_number(algebra.aligned(operand, node)) for operand in args[:2])
        dtype = torch.result_type(*(_sample(operand) for operand in args[:2]))
        if dtype != torch.bool:
            exact(a, dtype, node)
            exact(b, dtype, node)
        return first_true(_case_by_case(relation, (a, b), node))

    return rule


def _sample(operand: object) -> Any:
    """What decides the dtype in which an op computes."""
    if not isinstance(operand, fx.Node):
        return operand
    value = tensor(operand)
    return 0 if value is None else value


def _logic(combine: Callable[..., object]) -> Rule:
    def rule(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
        if node.meta["val"].dtype != torch.bool:
            raise Opaque(node, "bitwise arithmetic on integers")
        return cast(Value, combine(*(as_condition(algebra.aligned(operand, node)) for operand in args)))

    return rule


def _where(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
    chosen = as_condition(algebra.aligned(args[0], node))
    a, b = (as_number(algebra.aligned(operand, node)) for operand in args[1:3])
    pieces = [(amount, sympy.And(chosen, when)) for amount, when in branches(a)] + branches(b)
    return cast(Value, sympy.Piecewise(*pieces))


def _masked_fill(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
    return _where(algebra, node, (args[1], args[2], args[0]))


def _triangle(upper: bool) -> Rule:
    def rule(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
        value, ndim = algebra.value(args[0]), len(shape(node))
        row, column = coordinate(ndim - 2), coordinate(ndim - 1)
        diagonal = algebra.value(args[1])
        kept = column >= row + diagonal if upper else column <= row + diagonal
        pieces = [(amount, sympy.And(when, kept)) for amount, when in branches(as_number(value))]
        return cast(Value, sympy.Piecewise(*pieces, (0, True)))

    return rule


def _diff(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
    """The difference of neighbours.  With a value prepended it must be one constant everywhere, or it is opaque."""
    source, order, dim, before, after = args
    dim = normal_dim(dim, len(shape(node)))
    if order != 1 or after is not None:
        raise Opaque(node, "diff of higher order, or with values appended")
    value, here = as_number(algebra.value(source)), coordinate(dim)
    if isinstance(value, sympy.Piecewise):
        raise Opaque(node, f"diff of {value}")
    if before is None:
        return cast(Value, sympy.expand(value.subs(here, here + 1) - value))
    inner = sympy.expand(value - value.subs(here, here - 1))
    first = sympy.expand(value.subs(here, 0) - as_number(algebra.aligned(before, node)))
    if inner != first or inner.has(here) or shape(cast(fx.Node, before))[dim] != 1:
        raise Opaque(node, f"diff is {first} at the start and {inner} after it")
    return cast(Value, inner)


def _cumsum(algebra: IndexAlgebra, node: fx.Node, args: tuple[object, ...]) -> Value:
    value = as_number(algebra.value(args[0]))
    here = coordinate(normal_dim(args[1], len(shape(node))))
    if value.has(here):
        raise Opaque(node, f"the running sum of {value}")
    return cast(Value, value * (here + 1))


INDEX_RULES: Mapping[str, Rule] = {
    "arange": _arange,
    **dict.fromkeys(("ones", "new_ones", "ones_like"), _constant(1)),
    **dict.fromkeys(("zeros", "new_zeros", "zeros_like"), _constant(0)),
    "full": _filled(1),
    "full_like": _filled(1),
    "new_full": _filled(2),
    "scalar_tensor": _filled(0),
    **dict.fromkeys(("to", "_to_copy", "clone", "contiguous", "detach", "alias", "lift_fresh_copy"), _same),
    **MOVES,
    "diff": _diff,
    "cumsum": _cumsum,
    "add": _arithmetic(lambda a, b, factor: a + b * factor),
    "sub": _arithmetic(lambda a, b, factor: a - b * factor),
    "rsub": _arithmetic(lambda a, b, factor: b - a * factor),
    "mul": _arithmetic(lambda a, b: a * b),
    "neg": _arithmetic(lambda a: -a),
    "abs": _arithmetic(sympy.Abs),
    "le": _comparison(sympy.Le),
    "lt": _comparison(sympy.Lt),
    "ge": _comparison(sympy.Ge),
    "gt": _comparison(sympy.Gt),
    "eq": _comparison(sympy.Eq),
    "ne": _comparison(sympy.Ne),
    **dict.fromkeys(("__and__", "bitwise_and", "logical_and"), _logic(sympy.And)),
    **dict.fromkeys(("__or__", "bitwise_or", "logical_or"), _logic(sympy.Or)),
    **dict.fromkeys(("logical_not", "bitwise_not"), _logic(sympy.Not)),
    "where": _where,
    "masked_fill": _masked_fill,
    "tril": _triangle(upper=False),
    "triu": _triangle(upper=True),
}
