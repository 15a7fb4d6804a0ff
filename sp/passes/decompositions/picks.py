"""Single positions of the sequence, by a number or by an index for each row; pieces of it, and rolls.

    select(x, 1, -1)                     →  squeeze(slice(x, 1, -1), 1)
    x[arange(B), last]                   →  sum(where(position == last, x, 0), [1])       last: an index for each row
    split(x, [4, S-4], 1)                →  slice(x, 1, 0, 4), slice(x, 1, 4, S)
    roll(x, 1, 1)                        →  cat([slice(x, 1, -1), slice(x, 1, 0, -1)], 1)

Each raises Refused for what it cannot take apart.
"""

from __future__ import annotations

from typing import cast

import sympy
import torch
from torch import fx

from sp.passes.builder import Builder
from sp.passes.decompositions.common import aten, dims_of, dtype_of, sequence_dim, total
from sp.passes.fxtools import expression, named, normal_dim, positional, shape, tensor
from sp.passes.index_algebra import IndexAlgebra, Opaque, as_number, coordinate
from sp.passes.index_rules import INDEX_RULES
from sp.passes.rules import Refused
from sp.program import Program

_END = torch.iinfo(torch.int64).max


def on_sequence(node: fx.Node, program: Program) -> bool:
    """Whether this select takes one position of a sequence."""
    source = cast(fx.Node, node.args[0])
    return program.holds_sequence(shape(source)[normal_dim(node.args[1], len(shape(source)))])


def select(node: fx.Node, build: Builder) -> fx.Node | None:
    if not on_sequence(node, build.program):
        return None
    source, dim, index = positional(node)
    if isinstance(index, int):
        end = _END if index == -1 else index + 1
        return build(aten.squeeze.dim, build(aten.slice.Tensor, source, dim, index, end), dim)
    raise Refused("it selects a position that is computed", "write x[torch.arange(batch), positions]")


def _only(build: Builder, x: fx.Node, dims: list[int], *, keep: bool) -> fx.Node:
    """The sum over `dims` of what is zero but for one element."""
    if dtype_of(x) != torch.bool:
        return total(build, x, dims, keep)
    return build.cast(total(build, build.cast(x, torch.int32), dims, keep), torch.bool)


def index(node: fx.Node, build: Builder) -> fx.Node | None:
    """x[arange(B), places]: one position for each row of a batch."""
    source, indices = cast(fx.Node, node.args[0]), cast("list[fx.Node | None]", node.args[1])
    sizes = shape(source)
    held = [dim for dim, one in enumerate(indices) if one is not None and build.program.holds_sequence(sizes[dim])]
    if not held:
        return None
    if [one is not None for one in indices] != [True, True] or held != [1]:
        raise Refused(
            f"it indexes {source.name} along dim {held[0]}, where the sequence lives, not by one position for each row",
            "write x[torch.arange(batch), positions], one position for each row",
        )
    rows, places = cast("list[fx.Node]", indices)
    if not _counts_rows(rows, sizes[0] == shape(places)[0] if shape(places) else False):
        raise Refused(
            "its rows are not proven to be 0, 1, 2, … of the whole batch", "index rows by torch.arange(batch)"
        )
    return _one_each(build, source, build(aten.unsqueeze.default, places, 1), 1, keep=False)


def _counts_rows(rows: fx.Node, as_many: bool) -> bool:
    if not as_many or len(shape(rows)) != 1:
        return False
    counting = 0 if shape(rows) == (1,) else coordinate(0)
    try:
        return as_number(IndexAlgebra(INDEX_RULES).value(rows)) == counting
    except Opaque:
        return False


def gather(node: fx.Node, build: Builder) -> fx.Node | None:
    """gather along the sequence with one position for each row (and feature)."""
    source, dim, places, _ = positional(node)
    source, places = cast(fx.Node, source), cast(fx.Node, places)
    along = sequence_dim(source, dims_of(dim, len(shape(source))), build)
    if along is None:
        return None
    others = [(a, b) for at, (a, b) in enumerate(zip(shape(source), shape(places), strict=True)) if at != along]
    if shape(places)[along] != 1 or any(a != b for a, b in others):
        found = f"it gathers by an index of shape {shape(places)} from {shape(source)}, not one position for each row"
        raise Refused(found, "gather one position of the sequence for each row and feature")
    return _one_each(build, source, places, along, keep=True)


def _one_each(build: Builder, source: fx.Node, places: fx.Node, along: int, *, keep: bool) -> fx.Node:
    """source[…, places, …] along the sequence.  places: size 1 in that dim; negative ones count from the end."""
    ndim, length = len(shape(source)), shape(source)[along]
    fake = tensor(places)
    assert fake is not None
    for _ in range(ndim - fake.dim()):
        places = build(aten.unsqueeze.default, places, -1)
    from_end = build(aten.add.Tensor, places, build.size(length))
    places = build(aten.where.self, build(aten.lt.Scalar, places, 0), from_end, places)
    here = build(aten.eq.Tensor, build.positions(length, along, ndim), places)
    zero = build(aten.zeros_like.default, source)
    return _only(build, build(aten.where.self, here, source, zero), [along], keep=keep)


def pieces(node: fx.Node, build: Builder) -> tuple[fx.Node, ...] | None:
    """split, split_with_sizes, chunk along the sequence: a slice for each piece."""
    source, dim = cast(fx.Node, node.args[0]), named(node)["dim"]
    along = sequence_dim(source, dims_of(dim, len(shape(source))), build)
    if along is None:
        return None
    found: list[fx.Node] = []
    begin: sympy.Expr = sympy.Integer(0)
    for piece in cast("list[torch.Tensor]", node.meta["val"]):
        end = begin + expression(piece.shape[along])
        found.append(build(aten.slice.Tensor, source, along, build.size(begin), build.size(end)))
        begin = end
    return tuple(found)


def roll(node: fx.Node, build: Builder) -> fx.Node | None:
    source, shifts, named = positional(node)
    source = cast(fx.Node, source)
    along = sequence_dim(source, dims_of(named, len(shape(source))), build)
    if along is None:
        return None
    by = cast(list[object], shifts)[0]
    alone = isinstance(by, int) and cast(list[object], named) and len(cast(list[object], shifts)) == 1
    if not alone or not build.need_more_than(abs(cast(int, by)), shape(source)[along]):
        raise Refused(
            "it rolls the sequence with other dims, or by a computed number", "roll the sequence alone, by a number"
        )
    assert isinstance(by, int)
    parts = [build(aten.slice.Tensor, source, along, *ends) for ends in ((-by, _END), (0, -by))]
    return build(aten.cat.default, parts, along)
