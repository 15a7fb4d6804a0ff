"""Placement rules for lookups: tables read by index, and elements picked or put by index along one whole dim.

    embedding(table, ids: sharded(dim 1))                →  sharded(dim 1)
    index(table, [ids: sharded(dim 1)])                  →  sharded(dim 1)
    index(x: sharded(dim 1), [None, None, [0, 2]])       →  sharded(dim 1)
    gather(x: sharded(dim 1), 2, i: sharded(dim 1))      →  sharded(dim 1)

What is looked up along the sequence itself lies on other ranks: refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from sp.passes.dim_rules import along, dims_of, letters
from sp.passes.fxtools import named, positional, shape, tensor
from sp.passes.rules import Case, Pattern, Refused, Ruling, by_pattern, pointwise, rule_from

_MASK = "its mask picks a number of elements that only the data tell"


def embedding(case: Case) -> Ruling:
    """Indices on any dim; the table is whole.  Two options make its gradient something else than a sum over tokens."""
    *_, by_frequency, sparse = positional(case.node)
    if by_frequency or sparse:
        raise Refused("its gradient is sparse or scaled by how often an index occurs", "leave both options off")
    return by_pattern("n! d!, ... -> ... d")(case)


def one_hot(case: Case) -> Ruling:
    if named(case.node)["num_classes"] == -1:
        raise Refused(f"it counts the classes in {case.anchor.name}, and ranks have different ones", "give num_classes")
    return by_pattern("... -> ... n")(case)


def lined_up(case: Case) -> Ruling:
    """gather, scatter: element by element in all dims but one, without broadcasting."""
    at, size = case.placement.dim, shape(case.anchor)[case.placement.dim]
    for operand in case.operands:
        sizes = shape(operand)
        if at >= len(sizes) or sizes[at] != size:
            why = f"dim {at} of {case.anchor.name} holds the sequence, and {operand.name} is {tuple(sizes)}"
            raise Refused(why, f"give both the same size in dim {at}")
    return along("dim")(case)


def where(case: Case) -> Ruling:
    """Element by element; of a condition alone, it lists the positions where that holds."""
    if "other" not in named(case.node):
        raise Refused(f"{_MASK} ({case.anchor.name} holds the sequence)", "use torch.where(condition, x, y)")
    return pointwise(case)


def index_select(case: Case) -> Ruling:
    """One index for each position of a whole dim."""
    own, dim = _own(case)
    picked = ("i",)[: len(shape(case.operands[1]))]
    return rule_from(Pattern((own, picked), _swapped(own, dim, ("i",)), frozenset({own[dim]})), case)


def index_add(case: Case) -> Ruling:
    """index_add, index_copy, index_fill: the source has one row for each index."""
    own, dim = _own(case)
    terms = (own, ("i",)[: len(shape(case.operands[1]))], *_sources(case, _swapped(own, dim, ("i",))))
    return rule_from(Pattern(terms, own, frozenset({own[dim], "i"})), case)


def _sources(case: Case, source: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A number to fill with has no dims."""
    return [source if shape(operand) else () for operand in case.operands[2:]]


def select_scatter(case: Case) -> Ruling:
    """The source lacks the dim where it is put."""
    own, dim = _own(case)
    return rule_from(Pattern((own, _swapped(own, dim, ())), own, frozenset({own[dim]})), case)


def _own(case: Case) -> tuple[tuple[str, ...], int]:
    """Letters for the first operand, and the dim along which it is indexed."""
    ndim = len(shape(case.operands[0]))
    (dim,) = dims_of(case.node, ("dim",), ndim)
    return tuple(f"x{at}" for at in range(ndim)), dim


def _swapped(own: Sequence[str], dim: int, by: tuple[str, ...]) -> tuple[str, ...]:
    return (*own[:dim], *by, *own[dim + 1 :])


def index(case: Case) -> Ruling:
    """x[i, j, …]: the dims that are indexed are whole; indices broadcast to each other and follow the sequence."""
    own, indexed, result = _indexed(case)
    count = len(indexed)
    return rule_from(Pattern((own, *[("...",)] * count), result, frozenset(own[dim] for dim in indexed)), case)


def index_put(case: Case) -> Ruling:
    """x[i, j, …] = values: the indices are whole, too, or each rank would put its own."""
    own, indexed, picked = _indexed(case)
    whole = {*(own[dim] for dim in indexed), *(letter for letter in picked if letter not in own)}
    values = shape(case.operands[-1])
    terms = (own, *[("...",)] * len(indexed), picked[len(picked) - len(values) :])
    return rule_from(Pattern(terms, own, frozenset(whole)), case)


def _indexed(case: Case) -> tuple[tuple[str, ...], list[int], tuple[str, ...]]:
    """Letters of x; the dims that are indexed; letters of x[i, j, …], where what the indices broadcast to takes the
    place of adjacent dims, or goes to the front."""
    own = tuple(f"x{dim}" for dim in range(len(shape(case.operands[0]))))
    indices = {dim: node for dim, node in enumerate(cast("list[fx.Node | None]", case.node.args[1])) if node}
    if any(_dtype(node) in (torch.bool, torch.uint8) for node in indices.values()):
        raise Refused(f"{_MASK} (the sequence is in dim {case.placement.dim} of {case.anchor.name})", "use torch.where")
    dims, shared = sorted(indices), letters(max(len(shape(node)) for node in indices.values()))
    rest = [letter for dim, letter in enumerate(own) if dim not in indices]
    front = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    return own, dims, (*rest[:front], *shared, *rest[front:])


def _dtype(node: fx.Node) -> torch.dtype | None:
    value = tensor(node)
    return None if value is None else value.dtype


def searchsorted(case: Case) -> Ruling:
    """Boundaries [n] for values of any shape, or [..., n] for values [..., m]."""
    one = len(shape(cast(fx.Node, named(case.node)["sorted_sequence"]))) == 1
    terms = "n!, ..., n!" if one else "... n!, ... m, ... n!"
    return by_pattern(f"{terms} -> {'...' if one else '... m'}")(case)
