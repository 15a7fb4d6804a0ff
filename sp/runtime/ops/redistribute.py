"""`sp::redistribute`: what the ranks hold in one layout, in another.

    8 tokens, 2 ranks             rank 0      rank 1
    x, contiguous                 a b c d     e f g h
    redistribute(x) to striped    a c e g     b d f h

| op                 | forward                                              | backward                            |
|--------------------|------------------------------------------------------|-------------------------------------|
| `sp::redistribute` | each rank gets what it shall have from who has it    | `sp::redistribute`, layouts swapped |

One all-to-all: a rank sends to each other what that one needs and nothing else, and keeps what stays.

Arguments after `x`, see `Place`: dim, outer, start, length, total, layout; new_layout; group, inner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import Tensor

from sp.crossing import Rows, count_rows, crossings, unpacked
from sp.runtime.comm import all_to_all
from sp.runtime.ops.order import keep_order
from sp.runtime.ops.spans import Place
from sp.runtime.world import World


def _places(
    dim: int, outer: int, start: int, length: int, total: int, layout: str, new_layout: str, *rest: Any
) -> tuple[Place, Place]:
    before = Place(dim, outer, start, length, total, layout, *rest)
    return before, replace(before, layout=new_layout)


def _redistribute(x: Tensor, *arguments: Any) -> Tensor:
    """Local [… outer*n*inner …] in one layout -> local [… outer*m*inner …] in another."""
    before, after = _places(*arguments)
    world = before.span.world
    n, m = (place.span.local_length(world.rank) for place in (before, after))
    result = x.new_empty(after.shape(x, m))
    source, target = before.rows(x, n), after.rows(result, m)
    for rows, rows_to in _crossings(before, after, world.rank, world.rank):
        target[rows_to] = source[rows]
    if before.layout != after.layout and world.size > 1 and prod(source.shape[1:]):
        _exchange(world, source, target, before, after)
    return result


def _exchange(world: World, source: Tensor, target: Tensor, before: Place, after: Place) -> None:
    """Rows of `source` [n, …] to those who need them; into `target` [m, …] what others have for this rank."""
    others = [rank for rank in range(world.size) if rank != world.rank]
    sent = {rank: _crossings(before, after, world.rank, rank) for rank in others}
    due = {rank: _crossings(before, after, rank, world.rank) for rank in others}
    width = prod(source.shape[1:])
    to, by = ([width * _count(side.get(rank, ())) for rank in range(world.size)] for side in (sent, due))
    packed = torch.cat([source[:0], *(source[rows] for pieces in sent.values() for rows, _ in pieces)])
    arrived = all_to_all(world, packed.contiguous().view(-1), to, by).view(-1, *target.shape[1:])
    for rows, rows_to in unpacked(chain.from_iterable(due.values())):
        target[rows_to] = arrived[rows]


def _crossings(before: Place, after: Place, sender: int, receiver: int) -> tuple[Rows, ...]:
    return crossings(before.span.part, after.span.part, 0, before.span.world.size, sender, receiver)


def _count(pieces: Sequence[Rows]) -> int:
    return sum(count_rows(rows) for rows, _ in pieces)


def _redistribute_fake(x: Tensor, *arguments: Any) -> Tensor:
    keep_order()
    _, after = _places(*arguments)
    return x.new_empty(after.shape(x, after.span.local_length(after.span.world.rank)))


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.arguments = inputs[1:]


def _redistribute_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    *place, layout, new_layout, group, inner = ctx.arguments
    back = redistribute(gradient, *place, new_layout, layout, group, inner)
    return (back, *(None for _ in ctx.arguments))


redistribute = torch.library.custom_op(
    "sp::redistribute",
    _redistribute,
    mutates_args=(),
    schema=(
        "(Tensor x, int dim, SymInt outer, SymInt start, SymInt length, SymInt total,"
        " str layout, str new_layout, str group, SymInt inner=1) -> Tensor"
    ),
)
redistribute.register_fake(_redistribute_fake)
redistribute.register_autograd(_redistribute_back, setup_context=_keep_arguments)
