"""Convolutions along the sequence, of stride 1: a sum over taps, each of which is a shifted sequence.

    conv1d(x, w, b, padding=[1])   x [B, C, S], w [C, 1, 3], groups C
    →  y = pad(x, [1, 1]);   slice(y, 2, 0, S) * w[0] + slice(y, 2, 1, S+1) * w[1] + slice(y, 2, 2, S+2) * w[2] + b

The shifts become `sp.move`: for contiguous shards the halo of a few tokens, for stripes all tokens.
"""

from __future__ import annotations

from typing import cast

import sympy
from torch import fx

from sp.passes.builder import Builder
from sp.passes.decompositions.common import aten
from sp.passes.fxtools import positional, shape
from sp.passes.rules import Refused


def conv1d(node: fx.Node, build: Builder) -> fx.Node | None:
    """Depthwise (one filter per channel) and plain (groups=1)."""
    source, weight, bias, stride, padding, dilation, groups = positional(node)
    source, weight = cast(fx.Node, source), cast(fx.Node, weight)
    if not build.program.holds_sequence(shape(source)[-1]):
        return None
    if not all(size.is_Integer for size in shape(weight)):
        raise Refused(f"its filters {shape(weight)} are as long as the sequence", "use a filter of fixed size")
    out_channels, per_group, taps = (int(size) for size in shape(weight))
    depthwise = per_group == 1 and groups == out_channels
    if stride != [1] or not (depthwise or groups == 1):
        found = f"it convolves the sequence with stride {stride} and {groups} groups"
        raise Refused(found, "use stride 1, with one filter for each channel or with groups=1")
    step = cast(list[int], dilation)[0]
    left, right = _padding(padding, step * (taps - 1))
    padded = build(aten.constant_pad_nd.default, source, [left, right]) if left or right else source
    length = shape(padded)[-1] - step * (taps - 1)
    total = None
    for tap in range(taps):
        part = _tap(build, _window(build, padded, tap * step, length), weight, tap, depthwise)
        total = part if total is None else build(aten.add.Tensor, total, part)
    assert total is not None
    if bias is None:
        return total
    return build(aten.add.Tensor, total, build(aten.unsqueeze.default, bias, -1))


def _padding(padding: object, reach: int) -> tuple[int, int]:
    if isinstance(padding, str):
        return (reach // 2, reach - reach // 2) if padding == "same" else (0, 0)
    (both,) = cast(list[int], padding)
    return both, both


def _window(build: Builder, padded: fx.Node, begin: int, length: sympy.Expr) -> fx.Node:
    if length == shape(padded)[-1]:
        return padded
    return build(aten.slice.Tensor, padded, -1, begin, build.size(length + begin))


def _tap(build: Builder, x: fx.Node, weight: fx.Node, tap: int, depthwise: bool) -> fx.Node:
    """What one tap adds: x [B, C, T] times its column of the weight."""
    column = build(aten.select.int, weight, 2, tap)  # [out, C / groups]
    return build(aten.mul.Tensor, x, column) if depthwise else build(aten.matmul.default, column, x)
