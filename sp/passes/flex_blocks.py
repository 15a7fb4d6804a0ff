"""Whether the blocks of a flex_attention's block mask follow from its mask function, so that they hide nothing more.

ge  = aten.ge(_add_batch_dim_2, _add_batch_dim_3)      what create_block_mask has traced of its function
pad = aten.pad(_remove_batch_dim_3, [0, 127, 0, 127])  and of which it made blocks
sdpa_mask0:  ge = aten.ge(arg2, arg3)                  the function that the attention calls: the same
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import fx

from sp.passes.fxtools import op_name

INTO_VMAP, _OUT_OF = "_add_batch_dim", "_remove_batch_dim"  # of vmap, over batch, head, query, key


def blocks_follow(mask: fx.Graph, buffers: Sequence[object], blocks: Sequence[fx.Node]) -> bool:
    """Whether all `blocks` are computed from the value of `mask`, as create_block_mask computes them, and nothing else.

    buffers: what `mask` takes besides the four positions."""
    pads = [node for node in ancestors(blocks, set()) if op_name(node) == "aten.pad"]
    if len(pads) != 1:
        return False
    (pad,) = pads
    others = ancestors(blocks, {pad})
    constant = all(node.op == "call_function" for node in others if not _is_size(node))
    value = cast(fx.Node, pad.args[0])
    while op_name(value) in (_OUT_OF, "aten.expand"):
        value = cast(fx.Node, value.args[0])
    places = mask.find_nodes(op="placeholder")
    known: dict[fx.Node, object] = dict(zip(places[4:], buffers, strict=True))
    levels = {place: level for level, place in enumerate(places[:4], 1)}
    return constant and _same(value, mask.output_node().args[0], known, levels)


def ancestors(nodes: Sequence[fx.Node], ends: set[fx.Node]) -> set[fx.Node]:
    """All that `nodes` are computed from, themselves among them; the search stops at `ends`."""
    found, stack = set[fx.Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [] if node in ends else node.all_input_nodes
    return found


def _is_size(node: fx.Node) -> bool:
    return not hasattr(node.meta.get("val"), "stride")


def _same(traced: object, called: object, known: dict[fx.Node, object], levels: dict[fx.Node, int]) -> bool:
    """Whether `traced`, of the outer graph, is computed as `called` is in the mask's own."""
    if not isinstance(called, fx.Node):
        if isinstance(called, (list, tuple)):
            return isinstance(traced, (list, tuple)) and _all_same(traced, called, known, levels)
        return str(traced) == str(called)
    if called in levels:
        is_position = isinstance(traced, fx.Node) and op_name(traced) == INTO_VMAP and traced.args[2] == levels[called]
        return bool(is_position) and op_name(cast(fx.Node, cast(fx.Node, traced).args[0])) == "aten.arange"
    if called in known:
        return traced is known[called]
    if not isinstance(traced, fx.Node) or op_name(traced) != op_name(called):
        return False
    if called.op == "get_attr" or op_name(called) == "flat_apply":
        skipped = 2 if op_name(called) == "flat_apply" else len(called.args)  # how indices are packed
        return _all_same(traced.args[skipped:], called.args[skipped:], known, levels)
    keys = traced.kwargs.keys() | called.kwargs.keys()
    options = all(_same(traced.kwargs.get(key), called.kwargs.get(key), known, levels) for key in keys)
    return options and traced.target == called.target and _all_same(traced.args, called.args, known, levels)


def _all_same(
    traced: Sequence[object], called: Sequence[object], known: dict[fx.Node, object], levels: dict[fx.Node, int]
) -> bool:
    pairs = zip(traced, called, strict=False)
    return len(traced) == len(called) and all(_same(a, b, known, levels) for a, b in pairs)
