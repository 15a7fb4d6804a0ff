"""Lowering: how a rank computes what is not simply the op on its own part.

    slice(x, 1, 0, S-1)    →  narrow(x, …)                         its own tokens of that stretch
    slice(x, 1, 0, 3)      →  unshard(narrow(x, …), …)             three tokens, gathered
    pad(x, [0, 0, 1, 0])   →  move(x, …, shift=1, fill=0.0)        its tokens of the longer sequence
    cat([cls, x], 1)       →  widen(shard(cls)) + move(x, shift=1)
    noise(x, seed)         →  noise(x, seed, …, 1, 0, S, S, …)     by the place of its tokens in the whole

Every inserted op is recorded with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, cast

import sympy
import torch
from torch import fx

from sp.passes.fxtools import expression, positional, shape
from sp.passes.local_graph import LocalGraph
from sp.passes.rules import Lowering, Ruling
from sp.program import Replicated, Sharded
from sp.runtime import ops

_ZERO = sympy.Integer(0)


class Forms(Protocol):
    """What a lowering asks of the localizer: the graph, and old values as shards or whole."""

    out: LocalGraph
    whole: dict[fx.Node, fx.Node]

    def shard_of(self, node: fx.Node, need: Sharded) -> fx.Node: ...


def moved(forms: Forms, node: fx.Node, source: fx.Node, before: Sharded, after: Sharded) -> fx.Node:
    """The same elements as `node`, dealt as another span."""
    why = f"{node.name} is {before} and meets values that are {after}"
    return _move(forms, node, (source, before, node), after, _ZERO, 0.0, why)


def _move(
    forms: Forms,
    node: fx.Node,
    source: tuple[fx.Node, Sharded, fx.Node],
    after: Sharded,
    shift: sympy.Expr,
    fill: float,
    why: str,
) -> fx.Node:
    """`source`: the shard, its placement, the global value that it is a shard of."""
    out = forms.out
    shard, before, origin = source
    bounds = [out.sizes.node(size) for size in (after.start, after.length, after.total, shift)]
    arguments = (shard, *out.span(before), *bounds, fill, *out.tail(origin, before))
    return out.insert(ops.move, arguments, node, why, after)


def _narrow(forms: Forms, node: fx.Node, ruling: Ruling) -> fx.Node:
    out, source = forms.out, cast(fx.Node, node.args[0])
    before, after = _sharded(ruling, source), cast(Sharded, ruling.span or ruling.output)
    dim, outer, start, length, total = out.span(before)
    bounds = (out.sizes.node(after.start), out.sizes.node(after.length))
    shard = forms.shard_of(source, before)
    arguments = (shard, dim, outer, start, length, *bounds, total, *out.tail(source, before))
    why = f"{node.name} keeps positions {after.start} to {after.start + after.length}"
    return out.insert(ops.narrow, arguments, node, why, after)


def _gather(forms: Forms, node: fx.Node, ruling: Ruling) -> fx.Node:
    part, span, out = _narrow(forms, node, ruling), cast(Sharded, ruling.span), forms.out
    why = f"{node.name} is {span.length} of all positions, for every rank to read"
    return out.insert(ops.unshard, (part, *out.span(span), *out.tail(node, span)), node, why, Replicated())


def _pad(forms: Forms, node: fx.Node, ruling: Ruling) -> fx.Node:
    source, after = cast(fx.Node, node.args[0]), cast(Sharded, ruling.output)
    before = _sharded(ruling, source)
    from_right = len(shape(source)) - 1 - before.dim
    left = cast(list[object], node.args[1])[2 * from_right]
    shift = expression(left.meta["val"] if isinstance(left, fx.Node) else left)
    fill = next((value for value in positional(node)[2:] if isinstance(value, (int, float))), 0.0)
    why = f"{node.name} has another length, so that tokens belong to other ranks"
    return _move(forms, node, (forms.shard_of(source, before), before, source), after, shift, float(fill), why)


def _join(forms: Forms, node: fx.Node, ruling: Ruling) -> fx.Node:
    """Every part in its place, zeros elsewhere; then their sum."""
    after, begin, total = cast(Sharded, ruling.output), _ZERO, None
    combine = torch.ops.aten.logical_or.default if node.meta["val"].dtype == torch.bool else torch.ops.aten.add.Tensor
    for part in cast(list[fx.Node], node.args[0]):
        placed = _part(forms, node, part, ruling, begin)
        joined = placed if total is None else forms.out.copy(node, combine, (total, placed), {})
        total = forms.out.place(joined, after)
        begin = begin + shape(part)[after.dim]
    assert total is not None, "cat joins something"
    return total


def _part(forms: Forms, node: fx.Node, part: fx.Node, ruling: Ruling, begin: sympy.Expr) -> fx.Node:
    after, out = cast(Sharded, ruling.output), forms.out
    need = ruling.operands[part]
    if isinstance(need, Sharded):
        why = f"{part.name} is part of the longer {node.name}, whose tokens belong to other ranks"
        return _move(forms, node, (forms.shard_of(part, need), need, part), after, begin, 0.0, why)
    own = replace(after, start=begin, length=shape(part)[after.dim])
    why = f"{part.name} is whole on every rank and becomes part of {node.name}"
    dim, outer, start, length, total = out.span(own)
    tail = out.tail(part, own)
    cut = out.insert(ops.shard, (forms.whole[part], dim, outer, start, length, total, *tail), part, why, own)
    bounds = (out.sizes.node(after.start), out.sizes.node(after.length))
    return out.insert(ops.widen, (cut, dim, outer, start, length, *bounds, total, *tail), node, why, after)


def _noise(forms: Forms, node: fx.Node, ruling: Ruling) -> fx.Node:
    source, seed, site, probability = node.args[:4]
    place = cast(Sharded, ruling.output)
    shard = forms.shard_of(cast(fx.Node, source), place)
    seeded = (forms.whole[cast(fx.Node, seed)], site, probability)
    arguments = (shard, *seeded, *forms.out.span(place), *forms.out.tail(node, place))
    return forms.out.copy(node, ops.noise, arguments, {})


def _sharded(ruling: Ruling, node: fx.Node) -> Sharded:
    placement = ruling.operands[node]
    assert isinstance(placement, Sharded), f"{node} is {placement}"
    return placement


LOWERINGS: Mapping[Lowering, Callable[[Forms, fx.Node, Ruling], fx.Node]] = {
    "narrow": _narrow,
    "gather": _gather,
    "pad": _pad,
    "join": _join,
    "noise": _noise,
}
