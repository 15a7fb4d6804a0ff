"""Reduce: averages over the sequence → sums over it, divided by a count, so that only sums cross the ranks.

    mean = aten.mean(x, [1])                              over S
    →  sum = aten.sum(x, [1]);  div = sum / S

    loss = aten.cross_entropy_loss(scores, target)        mean over the targets that count
    →  loss = aten.cross_entropy_loss(scores, target, None, SUM);  ne = target != -100;  count = sum(ne)
       div = loss / count                                 labels are whole on every rank: no reduction for the count

Both forms are equal on one device; ranks with different numbers of valid tokens, or none, change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument

from sp.errors import Refusal, UnsupportedModelError
from sp.passes.compute_rules import reduced_dims
from sp.passes.fxtools import op_name, positional, product, refusal, shape
from sp.passes.sizes import Sizes
from sp.program import Program

_NONE, _MEAN, _SUM = 0, 1, 2
aten = torch.ops.aten


@dataclass(frozen=True)
class Reduce:
    name: str = "reduce"

    def run(self, program: Program) -> Program:
        sizes, changed = Sizes(program), list[str]()
        refusals: list[Refusal] = []
        for node in list(program.graph.nodes):
            rewrite = REWRITES.get(op_name(node)) if node.op == "call_function" else None
            if rewrite is None or not averages_sequence(node, program):
                continue
            with program.graph.inserting_before(node):
                found = rewrite(node, program.graph, sizes)
            if isinstance(found, Refusal):
                refusals.append(found)
                continue
            node.replace_all_uses_with(found)
            program.graph.erase_node(node)
            changed.append(node.name)
        if refusals:
            raise UnsupportedModelError("averages that cannot be split over ranks", refusals=refusals)
        program.graph_module.recompile()
        return program.note(
            self.name, f"averages over the sequence made sums and counts: {', '.join(changed) or 'none'}"
        )

    def check(self, program: Program) -> None:
        left = [node for node in program.graph.nodes if op_name(node) in REWRITES and averages_sequence(node, program)]
        assert not left, f"reduce left {left}"


def averages_sequence(node: fx.Node, program: Program) -> bool:
    """Whether this op is a mean whose averaged dims hold the sequence."""
    if node.op != "call_function":
        return False
    sizes = shape(cast(fx.Node, node.args[0]))
    if op_name(node) == "aten.cross_entropy_loss":
        return positional(node)[3] == _MEAN and any(map(program.holds_sequence, sizes))
    dims, _ = reduced_dims(node, len(sizes))
    return any(program.holds_sequence(sizes[dim]) for dim in dims)


def _mean(node: fx.Node, graph: fx.Graph, sizes: Sizes) -> fx.Node:
    source = cast(fx.Node, node.args[0])
    dims, keep = reduced_dims(node, len(shape(source)))
    wide = _wide(node.meta["val"].dtype)
    total = graph.call_function(aten.sum.dim_IntList, (source, dims, keep), {"dtype": wide})
    count = sizes.node(product([shape(source)[dim] for dim in dims]))
    divided = graph.call_function(aten.div.Tensor, (total, count))
    _describe(node, wide, total, divided)
    return _cast(divided, node, graph)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What holds a sum: 16 bits overflow (float16) or round what a mean would not."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _describe(node: fx.Node, dtype: torch.dtype, *made: fx.Node) -> None:
    """Nodes made for `node` have its shape and its source line."""
    for new in made:
        new.meta = {**node.meta, "val": node.meta["val"].to(dtype)}


def _cast(made: fx.Node, node: fx.Node, graph: fx.Graph) -> fx.Node:
    """`made` in the dtype of the `node` that it replaces."""
    dtype = node.meta["val"].dtype
    if made.meta["val"].dtype == dtype:
        return made
    cast_back = graph.call_function(aten.to.dtype, (made, dtype))
    cast_back.meta = dict(node.meta)
    return cast_back


def _cross_entropy(node: fx.Node, graph: fx.Graph, sizes: Sizes) -> fx.Node | Refusal:
    _, target, weight, _, ignored, _ = positional(node)
    if weight is not None:
        return refusal(node, "its mean is weighted by class", "use reduction='sum' and divide by the weights yourself")
    target, fake = cast(fx.Node, target), cast(fx.Node, target).meta["val"]
    if fake.is_floating_point():
        return refusal(node, "its targets are probabilities of classes", "use class indices, or reduction='sum'")
    counts = graph.call_function(aten.ne.Scalar, (target, cast(int, ignored)))
    count = graph.call_function(aten.sum.default, (counts,))
    counts.meta = {**node.meta, "val": fake.new_empty(fake.shape, dtype=torch.bool)}
    count.meta = {**node.meta, "val": fake.new_empty((), dtype=torch.int64)}
    total = _summed_loss(node, graph)
    mean = graph.call_function(aten.div.Tensor, (total, count))
    _describe(node, total.meta["val"].dtype, mean)
    return _cast(mean, node, graph)


def _summed_loss(node: fx.Node, graph: fx.Graph) -> fx.Node:
    """The loss of all tokens; in 16 bits, that of each token, summed in 32."""
    scores, target, weight, _, *rest = cast("list[Argument]", list(positional(node)))
    dtype = node.meta["val"].dtype
    reduction = _SUM if _wide(dtype) == dtype else _NONE
    loss = graph.call_function(aten.cross_entropy_loss.default, (scores, target, weight, reduction, *rest))
    _describe(node, dtype, loss)
    if reduction == _SUM:
        return loss
    loss.meta["val"] = node.meta["val"].new_empty(cast(fx.Node, target).meta["val"].shape)
    total = graph.call_function(aten.sum.default, (loss,), {"dtype": _wide(dtype)})
    _describe(node, _wide(dtype), total)
    return total


REWRITES: Mapping[str, Callable[[fx.Node, fx.Graph, Sizes], fx.Node | Refusal]] = {
    "aten.mean": _mean,
    "aten.cross_entropy_loss": _cross_entropy,
}
