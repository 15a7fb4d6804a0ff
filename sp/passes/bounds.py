"""Bounds: slices from `max(0, N - S)`, as of a table that is as long as the longest sequence, where S <= N is known.

sub = 128 - sym_size;  sym_max = max(sub, 0)
slice = aten.slice(bias, 2, sym_max)             [H, 1, 128 - Max(0, 128 - S)]
→
slice = aten.slice(bias, 2, sub)                 [H, 1, S]
"""

from __future__ import annotations

from typing import cast

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import Max

from sp.passes.builder import Builder
from sp.passes.fxtools import expression, positional
from sp.program import Program


def rewrite_bounded_slice(node: fx.Node, program: Program) -> None:
    """The same slice, from a start without `max`, if the lengths for which the program holds decide it."""
    source, dim, start, end, step = positional(node)
    if not isinstance(start, fx.Node) or not isinstance(start.meta.get("val"), torch.SymInt):
        return
    size = expression(start.meta["val"])
    settled = settle(size, program)
    if settled == size:
        return
    build = Builder(node, program)
    first = build.size(settled)
    whole = first == 0 and end is None and step == 1
    made = cast(fx.Node, source) if whole else build(torch.ops.aten.slice.Tensor, source, dim, first, end, step)
    node.replace_all_uses_with(made)
    program.graph.erase_node(node)


def settle(size: sympy.Expr, program: Program) -> sympy.Expr:
    """`size` with each `Max(0, a)` as 0 or as a, where one of them holds for all lengths of the program."""

    def settled(*operands: sympy.Expr) -> sympy.Expr:
        others = [operand for operand in operands if operand != 0]
        signs = _signs(others[0], program) if len(operands) == 2 and len(others) == 1 else {0}
        if signs == {1}:
            return others[0]
        return sympy.Integer(0) if signs == {-1} else cast(sympy.Expr, Max(*operands))

    return cast(sympy.Expr, size.replace(Max, settled))


def _signs(size: sympy.Expr, program: Program) -> set[int]:
    """1 for never negative, -1 for never positive, of an expression that grows evenly with one sequence's length."""
    lengths = next((one for one in program.sequences if size.free_symbols == {one.symbol}), None)
    slope = sympy.Integer(0) if lengths is None else size.diff(lengths.symbol)
    if lengths is None or not slope.is_Integer:
        return {0}
    first = size.subs(lengths.symbol, lengths.shortest)
    endless = lengths.longest is None
    last = slope * sympy.oo if endless else size.subs(lengths.symbol, lengths.longest or 0)
    if first >= 0 and last >= 0:
        return {1}
    return {-1} if first <= 0 and last <= 0 else {0}
