"""Products: matmul, bmm, mm, baddbmm and einsum of two tensors, all read as letters.

    matmul(q, kT)                         b h m k, b h k n -> b h m n
    einsum("bqhd,bkhd->bhqk", q, k)       b q h d, b k h d -> b h q k

So the passes that look for attention know one kind of product, and find `k` behind `k.transpose(-1, -2)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from sp.passes.builder import Builder
from sp.passes.contraction_rules import spelled
from sp.passes.fxtools import named, normal_dim, op_name, positional, shape
from sp.program import Program

aten = torch.ops.aten
Letters = tuple[str, ...]
_MATMULS = ("aten.matmul", "aten.bmm", "aten.mm", "aten.__matmul__")
_SWAPS = ("aten.transpose", "aten.swapaxes", "aten.swapdims", "aten.mT", "aten.t", "aten.permute")


@dataclass(frozen=True)
class Product:
    """`left` times `right`, summed over the one letter that the result lacks.  A letter for each dim."""

    left: fx.Node
    right: fx.Node
    left_letters: Letters
    right_letters: Letters
    result: Letters

    @property
    def summed(self) -> str:
        (letter,) = set(self.left_letters) - set(self.result)
        return letter

    def only(self, side: str) -> Letters:
        """The letters of the result that only one side has."""
        own, other = (
            (self.left_letters, self.right_letters) if side == "left" else (self.right_letters, self.left_letters)
        )
        return tuple(letter for letter in self.result if letter in own and letter not in other)


def read_product(node: fx.Node) -> Product | None:
    """What a node multiplies, None if it is no product of two tensors over one letter."""
    name = op_name(node)
    if name in _MATMULS:
        left, right = (cast(fx.Node, operand) for operand in positional(node)[:2])
        return _matmul(left, right)
    if name == "aten.einsum":
        return _einsum(node)
    return None


def _matmul(left: fx.Node, right: fx.Node) -> Product | None:
    sizes = [len(shape(operand)) for operand in (left, right)]
    if min(sizes) < 2:
        return None  # a vector
    outer = [tuple(f".{place}" for place in range(size - 2, 0, -1)) for size in sizes]
    return Product(left, right, (*outer[0], "m", "k"), (*outer[1], "k", "n"), (*max(outer, key=len), "m", "n"))


def _einsum(node: fx.Node) -> Product | None:
    arguments = named(node)
    operands = cast(list[fx.Node], arguments["tensors"])
    inputs, arrow, output = cast(str, arguments["equation"]).replace(" ", "").partition("->")
    if not arrow or len(operands) != 2:
        return None
    terms = zip((*inputs.split(","), output), (*operands, node), strict=True)
    left, right, result = letters = [spelled(term, value) for term, value in terms]
    if any(len(set(term)) < len(term) for term in letters):
        return None
    summed = (set(left) | set(right)) - set(result)
    if len(summed) != 1 or not summed <= set(left) & set(right):
        return None
    return Product(operands[0], operands[1], left, right, result)


def is_wide(node: fx.Node, program: Program) -> bool:
    """Whether two dims hold a sequence: sequence × sequence."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and sum(map(program.holds_sequence, shape(node))) > 1


def turned(build: Builder, node: fx.Node, have: Letters, want: Letters) -> fx.Node:
    """`node`, whose dims are `have`, with the dims `want`; one that it lacks gets size 1.

    Permutations that lie before it are undone rather than doubled: of `k.transpose(-1, -2)` it finds `k`."""
    node = _permuted(build, node, [have.index(letter) for letter in want if letter in have])
    for place, letter in enumerate(want):
        if letter not in have:
            node = build(aten.unsqueeze.default, node, place)
    return node


def _permuted(build: Builder, node: fx.Node, order: Sequence[int]) -> fx.Node:
    same = list(range(len(order)))
    while list(order) != same and op_name(node) in _SWAPS:
        before = _order(node)
        order = [before[dim] for dim in order]
        node = cast(fx.Node, node.args[0])
    if list(order) == same:
        return node
    swapped = [at for at, dim in enumerate(order) if at != dim]
    if len(swapped) == 2:
        return build(aten.transpose.int, node, *swapped)
    return build(aten.permute.default, node, list(order))


def _order(node: fx.Node) -> list[int]:
    """As `permute` would name what a swap of dims does."""
    ndim = len(shape(node))
    order = list(range(ndim))
    if op_name(node) == "aten.permute":
        return [normal_dim(dim, ndim) for dim in cast(list[int], node.args[1])]
    a, b = (normal_dim(dim, ndim) for dim in (node.args[1:3] if len(node.args) == 3 else (-2, -1)))
    order[a], order[b] = order[b], order[a]
    return order
