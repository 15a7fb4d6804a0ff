"""`sp::move`: a value that covers one stretch of a sequence becomes one over another stretch, or of another sequence.

    striped, 2 ranks       rank 0        rank 1
    x of 4 positions       a c           b d
    move(x, shift=1, 5)    . b d         a c          a prefix token will stand in front

| op         | forward                                            | backward                  |
|------------|----------------------------------------------------|---------------------------|
| `sp::move` | element i goes to where element i + shift belongs  | `sp::move`, shift negated |

Each element travels at most once, from the rank that has it to the one that needs it: nothing where layouts agree, the
tokens at the borders (the *halo*) for contiguous shards, everything for stripes, whose neighbours are on other ranks.

Arguments after `x`, see `Place`: dim, outer, start, length, total of what is there; new_start, new_length, new_total of
what shall be; shift; fill, the value of elements that nothing is moved to; layout, group, inner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sp.crossing import Rows, count_rows, crossings, unpacked
from sp.runtime.comm import Exchange, post_exchange
from sp.runtime.ops.order import keep_order
from sp.runtime.ops.spans import Place, Span
from sp.runtime.world import World


def _places(
    dim: int,
    outer: int,
    start: int,
    length: int,
    total: int,
    new_start: int,
    new_length: int,
    new_total: int,
    shift: int,
    fill: float,
    *rest: Any,
) -> tuple[Place, Place, int, float]:
    before = Place(dim, outer, start, length, total, *rest)
    return before, replace(before, start=new_start, length=new_length, total=new_total), shift, fill


def _move(x: Tensor, *arguments: Any) -> Tensor:
    """Local [… outer*n*inner …] of one span -> local [… outer*m*inner …] of another."""
    before, after, shift, fill = _places(*arguments)
    world = before.span.world
    result = x.new_full(after.shape(x, after.span.local_length(world.rank)), fill)
    source = before.rows(x, before.span.local_length(world.rank))
    target = after.rows(result, after.span.local_length(world.rank))
    flights = [_post(source, before.span, after.span, shift, hop) for hop in range(1, world.size)]
    for rows_from, rows_to in _crossings(before.span, after.span, shift, world.rank, world.rank):
        target[rows_to] = source[rows_from]
    for hop, flight in enumerate(flights, 1):
        sender = (world.rank - hop) % world.size
        arrived = flight.wait().view(x.dtype).view(-1, *source.shape[1:])
        for rows, rows_to in unpacked(_crossings(before.span, after.span, shift, sender, world.rank)):
            target[rows_to] = arrived[rows]
    return result


def _post(source: Tensor, before: Span, after: Span, shift: int, hop: int) -> Exchange:
    """Send what the rank `hop` further on needs, and make room for what comes from as far behind.  Bytes travel."""
    world: World = before.world
    to, sender = (world.rank + hop) % world.size, (world.rank - hop) % world.size
    pieces = [source[rows] for rows, _ in _crossings(before, after, shift, world.rank, to)]
    packed = torch.cat([*pieces, source[:0]]).contiguous().view(-1).view(torch.uint8)
    rows = sum(count_rows(rows) for rows, _ in _crossings(before, after, shift, sender, world.rank))
    room = source.new_empty((rows, *source.shape[1:])).view(-1).view(torch.uint8)
    return post_exchange(world, packed, to, room, sender, hop, "hop {} of {} of a shift", hop, world.size - 1)


def _crossings(before: Span, after: Span, shift: int, sender: int, receiver: int) -> tuple[Rows, ...]:
    offset = after.start - before.start + shift  # from an element's old position to its new one
    return crossings(before.part, after.part, offset, before.world.size, sender, receiver)


def _move_fake(x: Tensor, *arguments: Any) -> Tensor:
    keep_order()
    _, after, _, _ = _places(*arguments)
    return x.new_empty(after.shape(x, after.span.local_length(after.span.world.rank)))


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.arguments = inputs[1:]


def _move_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    dim, outer, start, length, total, new_start, new_length, new_total, shift, _, *rest = ctx.arguments
    back = move(gradient, dim, outer, new_start, new_length, new_total, start, length, total, -shift, 0.0, *rest)
    return (back, *(None for _ in ctx.arguments))


move = torch.library.custom_op(
    "sp::move",
    _move,
    mutates_args=(),
    schema=(
        "(Tensor x, int dim, SymInt outer, SymInt start, SymInt length, SymInt total,"
        " SymInt new_start, SymInt new_length, SymInt new_total, SymInt shift, float fill,"
        " str layout, str group, SymInt inner=1) -> Tensor"
    ),
)
move.register_fake(_move_fake)
move.register_autograd(_move_back, setup_context=_keep_arguments)
