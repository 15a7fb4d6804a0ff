"""Normalize: erase what capture leaves behind and no later pass should have to know.

    _assert_tensor_metadata(x, …)             →  (erased: it would keep dead masks alive)
    slice(x, 0, 0, 9223372036854775807)       →  x
    dropout(x, 0.0, True)                     →  x
    sym_size(hidden, 1)                       →  sym_size(input_ids, 1), at the top
    to(x, torch.float32)      x is float32    →  x
    unflatten(x, 2, [4, -1])                  →  view(x, [B, S, 4, 16])          and other synonyms

What changes a value in place is refused here: from now on a node's value is what its own line says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from sp.errors import Refusal
from sp.passes.bounds import rewrite_bounded_slice
from sp.passes.fxtools import expression, inner_nodes, op_name, positional, refusal, tensor
from sp.passes.sizes import Sizes
from sp.passes.synonyms import rewrite_synonym
from sp.program import Program

_SIZES = frozenset({"aten.sym_size", "aten.sym_numel"})
_END = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Normalize:
    name: str = "normalize"

    def run(self, program: Program) -> Program:
        before, sizes = len(program.graph.nodes), Sizes(program)
        for node in list(program.graph.nodes):
            if node.op != "call_function":
                continue
            if op_name(node) in ERASED:
                program.graph.erase_node(node)
            elif op_name(node) in _SIZES and sizes.knows(node.meta.get("val")):
                with program.graph.inserting_before(node):
                    node.replace_all_uses_with(cast(fx.Node, sizes.node(expression(node.meta["val"]))))
            elif (test := IDENTITIES.get(op_name(node))) and test(node):
                node.replace_all_uses_with(cast(fx.Node, node.args[0]))
                program.graph.erase_node(node)  # dead code elimination keeps random ops
            elif op_name(node) == "aten.slice":
                rewrite_bounded_slice(node, program)
            else:
                rewrite_synonym(node, sizes)
        program.graph.eliminate_dead_code()
        after = len(program.graph.nodes)
        text = f"{before} nodes to {after}: assertions, idle slices, casts and dropouts erased"
        return program.refuse(_in_place(program)).note(self.name, text)

    def check(self, program: Program) -> None:
        left = [node for node in program.graph.nodes if op_name(node) in ERASED]
        if left:
            raise AssertionError(f"normalize left {left}")


def _in_place(program: Program) -> dict[str, Refusal]:
    """`mask[:, 0] = 1` would change what the index algebra has read off the line that made `mask`."""
    mutable = [node for node in program.graph.nodes if any(_is_mutable(one) for one in (node, *inner_nodes(node)))]
    remedy = "write it out of place (x = x + y for x += y, torch.where for x[...] = y)"
    return {
        node.name: refusal(node, "it changes its operand in place", remedy)
        for node in mutable
        if node.name not in program.refused
    }


def _is_mutable(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _whole_slice(node: fx.Node) -> bool:
    _, _, start, end, step = positional(node)
    return start in (None, 0) and (end is None or end == _END) and step == 1


def _idle_dropout(node: fx.Node) -> bool:
    _, probability, train = positional(node)
    return probability == 0.0 or not train


def _idle_cast(node: fx.Node) -> bool:
    source, result = tensor(node.args[0]), node.meta["val"]
    if source is None or any(node.kwargs.get(name) for name in ("copy", "memory_format")):
        return False
    if True in node.args[2:]:  # non_blocking or copy, by position
        return False
    return (source.dtype, source.device) == (result.dtype, result.device)


def _of_constant(node: fx.Node) -> bool:
    """`torch.tensor(0.0)` inside a forward detaches its fresh copy in place, for nothing."""
    return op_name(cast(fx.Node, node.args[0])) in ("aten.lift_fresh_copy", "aten.scalar_tensor")


ERASED = frozenset({"aten._assert_tensor_metadata"})

IDENTITIES: Mapping[str, Callable[[fx.Node], bool]] = {
    "aten.slice": _whole_slice,
    **dict.fromkeys((f"aten.{kind}dropout" for kind in ("", "alpha_", "feature_", "feature_alpha_")), _idle_dropout),
    "aten.to": _idle_cast,
    "aten.detach_": _of_constant,
}
