"""The ops that cut a replicated value into sharded parts, join the parts, and change the stretch that they cover.

| op            | forward                                   | backward      |
|---------------|-------------------------------------------|---------------|
| `sp::shard`   | this rank's positions of a whole          | `sp::unshard` |
| `sp::unshard` | the whole, on every rank (an all-gather)  | `sp::shard`   |
| `sp::narrow`  | fewer positions; each rank keeps its own  | `sp::widen`   |
| `sp::widen`   | more positions; zeros where none were     | `sp::narrow`  |

The gradient of a replicated value is whole, exact and the same on every rank; that of a sharded value is sharded
(JAX's `shard_map` calls the two *invariant* and *varying*).  So the gradient of a gathered value is cut, not summed.

Arguments, see `Place`.  Dim `dim` of `x` (not negative) holds outer * n * inner elements in row-major order: `outer`
merged elements in front of the n positions and `inner` behind them, both the same on every rank.  A value covers the
positions `start … start+length-1` of a sequence of `total`.  Of a whole, n is `length`; of a part, n is how many of
these positions `layout` gives to this rank, in ascending order.  That may be none, so `inner` cannot be found by
division and is an argument.  `group` names the process group; "" is a world of one.

`x` has any dtype and strides; results are contiguous and fresh.  Arguments that contradict each other are our own
mistake (AssertionError); a group that is gone is a StrategyError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef

from sp.runtime.comm import all_gather
from sp.runtime.ops.order import keep_order
from sp.runtime.ops.spans import Place


def _shard(x: Tensor, *arguments: Any) -> Tensor:
    """Replicated [… outer*length*inner …] -> local [… outer*n*inner …]; no communication."""
    place = Place(*arguments)
    span = place.span
    rank = span.world.rank
    n = span.local_length(rank)
    part = x.new_empty(place.shape(x, n))
    to, source = place.rows(part, n), place.rows(x, place.length)
    for local, whole in span.runs(rank):
        to[local] = source[whole]
    return part


def _shard_fake(x: Tensor, *arguments: Any) -> Tensor:
    place = Place(*arguments)
    span = place.span
    return x.new_empty(place.shape(x, span.local_length(span.world.rank)))


def _unshard(x: Tensor, *arguments: Any) -> Tensor:
    """Local [… outer*n*inner …] -> replicated [… outer*length*inner …]."""
    place = Place(*arguments)
    span = place.span
    lengths = [span.local_length(rank) for rank in range(span.world.size)]
    parts = all_gather(span.world, x, [place.shape(x, n) for n in lengths], "an unshard")
    result = x.new_empty(place.shape(x, place.length))
    to = place.rows(result, place.length)
    for rank, (part, n) in enumerate(zip(parts, lengths, strict=True)):
        source = place.rows(part, n)
        for local, whole in span.runs(rank):
            to[whole] = source[local]
    return result


def _unshard_fake(x: Tensor, *arguments: Any) -> Tensor:
    keep_order()
    place = Place(*arguments)
    return x.new_empty(place.shape(x, place.length))


def _two_places(
    dim: int, outer: int, start: int, length: int, new_start: int, new_length: int, *rest: Any
) -> tuple[Place, Place]:
    place = Place(dim, outer, start, length, *rest)
    return place, replace(place, start=new_start, length=new_length)


def _offset(inside: Place, around: Place) -> tuple[int, int, int]:
    """Of this rank's positions: how many `inside` has, how many `around`, and at which of these the first begins."""
    if around.start > inside.start or inside.start + inside.length > around.start + around.length:
        raise AssertionError(f"{inside} is not inside {around}")
    first, stop = inside.span.local_range(inside.span.world.rank)
    begin, end = around.span.local_range(around.span.world.rank)
    return stop - first, end - begin, first - begin


def _narrow(x: Tensor, *arguments: Any) -> Tensor:
    """Local [… outer*n*inner …] of one span -> local [… outer*m*inner …] of a span inside it; no communication."""
    around, inside = _two_places(*arguments)
    m, n, begin = _offset(inside, around)
    result = x.new_empty(inside.shape(x, m))
    inside.rows(result, m).copy_(around.rows(x, n)[begin : begin + m])
    return result


def _widen(x: Tensor, *arguments: Any) -> Tensor:
    """Local [… outer*m*inner …] of one span -> local [… outer*n*inner …] of a span around it, with zeros."""
    inside, around = _two_places(*arguments)
    m, n, begin = _offset(inside, around)
    result = x.new_zeros(around.shape(x, n))
    around.rows(result, n)[begin : begin + m] = inside.rows(x, m)
    return result


def _new_span_fake(x: Tensor, *arguments: Any) -> Tensor:
    _, new = _two_places(*arguments)
    return x.new_empty(new.shape(x, new.span.local_length(new.span.world.rank)))


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.arguments = inputs[1:]


def _define(name: str, schema: str, kernel: Callable[..., Tensor], fake: Callable[..., Tensor]) -> CustomOpDef:
    op = torch.library.custom_op(f"sp::{name}", kernel, mutates_args=(), schema=schema)
    op.register_fake(fake)
    return op


_ONE_SPAN = (
    "(Tensor x, int dim, SymInt outer, SymInt start, SymInt length,"
    " SymInt total, str layout, str group, SymInt inner=1) -> Tensor"
)
_TWO_SPANS = _ONE_SPAN.replace("length,", "length, SymInt new_start, SymInt new_length,")

shard = _define("shard", _ONE_SPAN, _shard, _shard_fake)
unshard = _define("unshard", _ONE_SPAN, _unshard, _unshard_fake)
narrow = _define("narrow", _TWO_SPANS, _narrow, _new_span_fake)
widen = _define("widen", _TWO_SPANS, _widen, _new_span_fake)


def _no_gradients(ctx: Any) -> tuple[None, ...]:
    """For everything but the tensor."""
    return (None,) * len(ctx.arguments)


def _swapped(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of the way back: start, length and new_start, new_length change places."""
    dim, outer, start, length, new_start, new_length, *rest = arguments
    return dim, outer, new_start, new_length, start, length, *rest


def _define_gradients() -> None:
    for op, back in ((shard, unshard), (unshard, shard)):
        op.register_autograd(
            lambda ctx, g, back=back: (back(g, *ctx.arguments), *_no_gradients(ctx)),
            setup_context=_keep_arguments,
        )
    for op, back in ((narrow, widen), (widen, narrow)):
        op.register_autograd(
            lambda ctx, g, back=back: (back(g, *_swapped(ctx.arguments)), *_no_gradients(ctx)),
            setup_context=_keep_arguments,
        )


_define_gradients()
