"""The index algebra: what an index-domain value is, as a function of its own coordinates.

A value built from `arange`, constants, comparisons and gathers of one by another is followed symbolically, so that
transformers' mask for an ordinary decoder (diff, cumsum, gathers, `<=`, `==`, `and`, expand) reduces to what it is:

    index  = aten.index(positions, [batch, queries])   c2
    index1 = aten.index(positions, [batch, keys])      c3
    le     = aten.le(index1, index)                    c3 <= c2          → causal

Coordinates are the symbols c0, c1, …; a dim of size 1 has none.  What cannot be followed is `Opaque`, with the node to
blame.  Nothing here looks at values: what it says holds for every length and batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeGuard, cast

import sympy
import torch
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean, BooleanAtom, BooleanFunction
from torch import fx

from sp.passes.fxtools import expression, op_name, positional, shape, tensor

Value = sympy.Expr | Boolean


class Opaque(Exception):
    """This node's value is not a known function of its coordinates."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


def is_condition(value: Value) -> TypeGuard[Boolean]:
    """Whether a value is true or false.  (sympy's own Symbol counts as Boolean; coordinates are numbers.)"""
    return isinstance(value, (BooleanAtom, BooleanFunction, Relational))


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
        found = self.known[node]
        if isinstance(found, Opaque):
            raise found
        return found

    def _follow(self, node: fx.Node) -> Value:
        size = node.meta.get("val")
        if isinstance(size, torch.SymInt):
            return expression(size)
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            raise Opaque(node, f"{node.name} is an input: its values are not known when the graph is made")
        rule = self.rules.get(op_name(node).removeprefix("aten."))
        if rule is None:
            raise Opaque(node, f"the index algebra does not know {op_name(node)}")
        try:
            value = rule(self, node, positional(node))
        except TypeError as error:
            raise Opaque(node, str(error)) from error
        single = {dim: 0 for dim, size in enumerate(shape(node)) if size == 1}
        return substitute(value, single) if single else value

    def aligned(self, operand: object, node: fx.Node) -> Value:
        """The value of an operand in the coordinates of `node`, under broadcasting."""
        value = self.value(operand)
        if tensor(operand) is None:
            return value
        sizes = shape(cast(fx.Node, operand))
        shift = len(shape(node)) - len(sizes)
        return rename(value, {dim: dim + shift for dim in range(len(sizes))})


Rule = Callable[[IndexAlgebra, fx.Node, tuple[object, ...]], Value]


def _constant(value: object) -> Value:
    if isinstance(value, bool):
        return sympy.true if value else sympy.false
    if isinstance(value, (int, float)) and abs(value) == float("inf"):
        return sympy.oo if value > 0 else -sympy.oo
    if isinstance(value, (int, float)) and value == int(value):
        return sympy.Integer(int(value))
    raise TypeError(f"{value!r} is no whole number")


def rename(value: Value, dims: Mapping[int, int]) -> Value:
    return substitute(value, {dim: coordinate(new) for dim, new in dims.items()})


def substitute(value: Value, by: Mapping[int, Value | int]) -> Value:
    return cast(Value, value.xreplace({coordinate(dim): sympy.sympify(new) for dim, new in by.items()}))
