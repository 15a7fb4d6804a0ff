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

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sp.layout import Run, find_layout
from sp.runtime.comm import Exchange, post_exchange
from sp.runtime.ops.order import keep_order
from sp.runtime.ops.spans import Place, Span
from sp.runtime.world import World

_Piece = tuple[slice, slice]  # rows of the sender's part, rows of the receiver's
_Bounds = tuple[int, int, int]  # start, length, total


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
        for rows, rows_to in _unpacked(_crossings(before.span, after.span, shift, sender, world.rank)):
            target[rows_to] = arrived[rows]
    return result


def _post(source: Tensor, before: Span, after: Span, shift: int, hop: int) -> Exchange:
    """Send what the rank `hop` further on needs, and make room for what comes from as far behind.  Bytes travel."""
    world: World = before.world
    to, sender = (world.rank + hop) % world.size, (world.rank - hop) % world.size
    pieces = [source[rows] for rows, _ in _crossings(before, after, shift, world.rank, to)]
    packed = torch.cat([*pieces, source[:0]]).contiguous().view(-1).view(torch.uint8)
    rows = sum(_count(rows) for rows, _ in _crossings(before, after, shift, sender, world.rank))
    room = source.new_empty((rows, *source.shape[1:])).view(-1).view(torch.uint8)
    return post_exchange(world, packed, to, room, sender, tag=hop)


def _count(rows: slice) -> int:
    return rows.stop - rows.start


def _unpacked(pieces: tuple[_Piece, ...]) -> Iterator[_Piece]:
    """Where the pieces lie in the buffer that carried them one after another."""
    begin = 0
    for _, rows_to in pieces:
        yield slice(begin, begin + _count(rows_to)), rows_to
        begin += _count(rows_to)


def _crossings(before: Span, after: Span, shift: int, sender: int, receiver: int) -> tuple[_Piece, ...]:
    old, new = ((span.start, span.length, span.total) for span in (before, after))
    return _pieces(before.layout, before.world.size, old, new, shift, sender, receiver)


@lru_cache(maxsize=4096)
def _pieces(
    layout: str, world: int, old: _Bounds, new: _Bounds, shift: int, sender: int, receiver: int
) -> tuple[_Piece, ...]:
    """Which rows of the sender's part belong to which rows of the receiver's."""
    offset = new[0] - old[0] + shift  # from an element's old position to its new one
    found: list[_Piece] = []
    theirs = [*_held(layout, world, new, receiver)]
    ends = [_end(b) for _, b in theirs]
    for first, a in _held(layout, world, old, sender):
        # Positions ascend, so that those that this run may meet stand next to each other.
        for second, b in theirs[bisect_right(ends, a.start + offset) :]:
            if b.start >= _end(a) + offset:
                break
            assert a.stride == b.stride, "runs of one layout share their stride"
            begin, rest = max(a.start + offset, b.start), (a.start + offset - b.start) % a.stride
            count = (min(_end(a) + offset, _end(b)) - begin + a.stride - 1) // a.stride
            if rest == 0 and count > 0:
                here, there = (begin - offset - a.start) // a.stride + first, (begin - b.start) // b.stride + second
                found.append((slice(here, here + count), slice(there, there + count)))
    return tuple(found)


def _held(layout: str, world: int, span: _Bounds, rank: int) -> Iterator[tuple[int, Run]]:
    """The positions of a span that `rank` holds, as runs, each with the row at which it begins."""
    start, length, total = span
    row = 0
    for run in find_layout(layout).runs(total, rank, world):
        skipped, count = run.count_below(start), run.count_below(start + length)
        if count > skipped:
            yield row, Run(run.start + skipped * run.stride, run.stride, count - skipped)
        row += count - skipped


def _end(run: Run) -> int:
    """The first position that would come after its last."""
    return run.start + run.stride * run.length


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
