"""Sizes: expressions in the captured size symbols, as nodes of the graph.

    sizes.node(B*S)  →  sym_size = aten.sym_size.int(input_ids, 0);  mul = sym_size * sym_size_1

Every symbol is read from an input, so that no activation is kept alive (and no local length mistaken for the global
one) to answer a question about sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, cast

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod

from sp.passes.fxtools import shape, tensor
from sp.program import Program

# The functions of which torch makes size expressions, as Python computes them.
_FUNCTIONS: Mapping[type[sympy.Basic], Callable[..., Any]] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    sympy.Pow: operator.pow,
    FloorDiv: operator.floordiv,
    CleanDiv: operator.floordiv,
    Mod: operator.mod,
    PythonMod: operator.mod,
    Max: torch.sym_max,
    Min: torch.sym_min,
}


class Sizes:
    """Answers `node(expression)` with a node of the graph that computes it, found or made."""

    def __init__(self, program: Program, graph: fx.Graph | None = None) -> None:
        self.graph = graph or program.graph
        self.sequences = program.symbols
        self.local = {port.name for port in program.inputs if port.local}
        self.made: dict[sympy.Expr, fx.Node] = {}

    def knows(self, size: object) -> bool:
        """Whether it is a symbolic size that the inputs tell.  What depends on contents (`nonzero`) is none."""
        return isinstance(size, torch.SymInt) and self.tell(size.node.expr)

    def tell(self, size: sympy.Expr) -> bool:
        """Whether `node` can compute this size."""
        return size.free_symbols <= self._symbols()

    def _symbols(self) -> set[sympy.Basic]:
        inputs = [node for node in self.graph.find_nodes(op="placeholder") if tensor(node) is not None]
        return {symbol for node in inputs for size in shape(node) for symbol in size.free_symbols}

    def node(self, size: sympy.Expr) -> fx.Node | int:
        """An int for a constant, otherwise a node: symbols are read at the top, the rest where the graph inserts."""
        if size.is_Integer:
            return int(size)
        if size not in self.made:
            self.made[size] = self._read(size) if size.is_Symbol else self._compute(size)
        return self.made[size]

    def _read(self, symbol: sympy.Expr) -> fx.Node:
        for placeholder in self.graph.find_nodes(op="placeholder"):
            value = tensor(placeholder)
            if value is None or (symbol in self.sequences and placeholder.target in self.local):
                continue  # a shard has only its own length
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                    return self._existing(placeholder, dim) or self._insert(placeholder, dim, size)
        raise AssertionError(f"no input has the size {symbol}")

    def _existing(self, placeholder: fx.Node, dim: int) -> fx.Node | None:
        for user in placeholder.users:
            if user.target is torch.ops.aten.sym_size.int and user.args == (placeholder, dim):
                self.graph.find_nodes(op="placeholder")[-1].append(user)  # to the top, where everything can read it
                return user
        return None

    def _insert(self, placeholder: fx.Node, dim: int, size: torch.SymInt) -> fx.Node:
        last = self.graph.find_nodes(op="placeholder")[-1]
        with self.graph.inserting_after(last):
            node = self.graph.call_function(torch.ops.aten.sym_size.int, (placeholder, dim))
        node.meta["val"] = size
        return node

    def _compute(self, size: sympy.Expr) -> fx.Node:
        function = _FUNCTIONS.get(type(size))
        assert function is not None, f"sizes cannot compute {size}"
        operands = [self.node(cast(sympy.Expr, part)) for part in size.args]

        def combine(a: fx.Node | int, b: fx.Node | int) -> fx.Node | int:
            node = self.graph.call_function(function, (a, b))
            values = [one.meta.get("val") if isinstance(one, fx.Node) else one for one in (a, b)]
            if None not in values:
                node.meta["val"] = function(*values)
            return node

        result = reduce(combine, operands)
        assert isinstance(result, fx.Node)
        return result
