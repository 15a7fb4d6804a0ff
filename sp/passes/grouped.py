"""Grouped heads: keys and values that a model repeats for its query heads, found un-repeated.

    unsqueeze = aten.unsqueeze(k, 2)                        [B, G, 1, S, D]
    expand    = aten.expand(unsqueeze, [B, G, n, S, D])
    reshape   = aten.reshape(expand, [B, G*n, S, D])        →  k
    repeat    = aten.repeat_interleave(k, n, 1)             →  k
    to        = aten.to(reshape, torch.bfloat16)            →  aten.to(k, torch.bfloat16)

Both put copies of one head side by side, which is how grouped attention reads them: query head h uses key head h // n.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import fx

from sp.passes.fxtools import normal_dim, op_name, positional, shape

_MERGES = ("aten.reshape", "aten.view", "aten._unsafe_view", "aten.flatten")
_COPIES = ("aten.contiguous", "aten.clone")


def ungroup(query: fx.Node, key: fx.Node, value: fx.Node, enable_gqa: bool) -> tuple[fx.Node, fx.Node, str]:
    """Keys and values with as few heads as they really have, and how that was seen."""
    if enable_gqa:
        return key, value, "enable_gqa"
    bare_key, bare_value = unrepeated(key), unrepeated(value)
    if bare_key is None or bare_value is None or shape(bare_key)[1] != shape(bare_value)[1]:
        return key, value, "as many key heads as query heads"
    repeats = shape(query)[1] / shape(bare_key)[1]
    bare_key, bare_value = _cast_like(bare_key, key), _cast_like(bare_value, value)
    return bare_key, bare_value, f"repeated {repeats} × in the graph"


def _cast_like(bare: fx.Node, repeated: fx.Node) -> fx.Node:
    """What autocast casts after the repetition."""
    dtype = repeated.meta["val"].dtype
    if bare.meta["val"].dtype == dtype:
        return bare
    with repeated.graph.inserting_after(repeated):
        cast_bare = repeated.graph.call_function(torch.ops.aten.to.dtype, (bare, dtype))
    cast_bare.meta = {**repeated.meta, "val": bare.meta["val"].to(dtype)}
    return cast_bare


def unrepeated(node: fx.Node) -> fx.Node | None:
    """The value whose heads (dim 1) this one repeats side by side, up to its dtype; None if it repeats nothing."""
    if op_name(node) == "aten.to":
        node = cast(fx.Node, node.args[0])  # one cast, which `_cast_like` makes again
    while op_name(node) in _COPIES:
        node = cast(fx.Node, node.args[0])
    if op_name(node) == "aten.repeat_interleave":
        source, times, dim, *_ = positional(node)  # times may also be a tensor: so often each head
        even = isinstance(times, int) and isinstance(dim, int) and normal_dim(dim, 4) == 1
        return cast(fx.Node, source) if even else None
    if op_name(node) not in _MERGES:
        return None
    expand = cast(fx.Node, node.args[0])
    while op_name(expand) in _COPIES:
        expand = cast(fx.Node, expand.args[0])
    return _expanded(expand, node)


def _expanded(expand: fx.Node, merged: fx.Node) -> fx.Node | None:
    if op_name(expand) != "aten.expand":
        return None
    inserted = cast(fx.Node, expand.args[0])
    if op_name(inserted) != "aten.unsqueeze":
        return None
    source, dim = positional(inserted)
    batch, groups, repeats, *rest = shape(expand) if len(shape(expand)) == 5 else (0, 0, 0)
    fits = shape(merged) == (batch, groups * repeats, *rest) and shape(inserted) == (batch, groups, 1, *rest)
    return cast(fx.Node, source) if fits and dim in (2, -3) else None
