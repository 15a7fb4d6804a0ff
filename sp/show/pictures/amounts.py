"""Bytes: of parameters, and of all values that a graph makes, whole and on one rank."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import sympy
import torch
from torch import fx

from sp.layout import find_layout
from sp.passes.fxtools import attribute, expression
from sp.program import Program, Sharded


@dataclass(frozen=True)
class Amounts:
    """In bytes, for one sequence of the batch.  parameters: on every rank.  whole: of all values of the captured graph;
    rank: of all of the rewritten one, on the rank that holds most tokens.  Nothing is freed, and views take nothing."""

    parameters: int
    whole: int
    rank: int


def find_amounts(captured: Program, program: Program, lengths: Sequence[int], world: int) -> Amounts:
    """lengths: of the sequences."""
    held = [attribute(node) for node in program.graph.find_nodes(op="get_attr")]
    distinct = {id(each): each for each in held if isinstance(each, torch.Tensor)}
    layout = find_layout(program.strategy.layout)
    most = max(layout.local_length(lengths[0], rank, world) for rank in range(world)) / lengths[0]
    return Amounts(
        sum(each.nbytes for each in distinct.values()),
        sum(_Sizes(captured, lengths).made(node) for node in captured.graph.nodes),
        round(_on_rank(program, lengths, most)),
    )


def _on_rank(program: Program, lengths: Sequence[int], share: float) -> float:
    sizes, total = _Sizes(program, lengths), 0.0
    for node in program.graph.nodes:
        spread = isinstance(program.placements.get(node.name), Sharded) or _is_attention(node)
        total += sizes.made(node) * (share if spread else 1.0)
    return total


def _is_attention(node: fx.Node) -> bool:
    """Of several results, so that its placements are those of their readers."""
    return "sp::attention" in str(getattr(node.target, "_schema", ""))


class _Sizes:
    """Bytes of the values of one program."""

    def __init__(self, program: Program, lengths: Sequence[int]) -> None:
        pairs = zip(program.sequences, lengths, strict=True)
        self.known: Mapping[sympy.Basic, sympy.Integer] = {each.symbol: sympy.Integer(size) for each, size in pairs}
        self.seen: dict[sympy.Expr, int] = {}

    def made(self, node: fx.Node) -> int:
        """Zero for what has no memory of its own."""
        if node.op != "call_function" or node.target is operator.getitem or _is_view(node):
            return 0
        value = node.meta.get("val")
        parts = value if isinstance(value, (tuple, list)) else [value]
        return sum(self._bytes(part) for part in parts if isinstance(part, torch.Tensor))

    def _bytes(self, value: torch.Tensor) -> int:
        count = 1
        for size in value.shape:
            count *= self._size(expression(size))
        return count * value.dtype.itemsize

    def _size(self, size: sympy.Expr) -> int:
        if size not in self.seen:
            found = size.xreplace(self.known)
            self.seen[size] = int(
                cast(sympy.Integer, found.xreplace(dict.fromkeys(found.free_symbols, sympy.Integer(1))))
            )
        return self.seen[size]


def _is_view(node: fx.Node) -> bool:
    """Views, and what only hands its input on; a promise is an empty ticket."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    hands_on = ("sp::replicate", "sp::replicate_all", "sp::promise")
    return schema.name in hands_on or any(result.alias_info for result in schema.returns)
