"""Reduce: averages over the sequence → sums over it, divided by a count, so that only sums cross the ranks.

    mean = aten.mean(x, [1])                              over S
    →  sum = aten.sum(x, [1]);  div = sum / S

    loss = aten.cross_entropy_loss(scores, target)        mean over the targets that count
    →  loss = aten.cross_entropy_loss(scores, target, None, SUM);  ne = target != -100;  count = sum(ne)
       div = loss / count                                 labels are whole on every rank: no reduction for the count

    loss = aten.mse_loss(x, y)                            mean over all elements
    →  loss = aten.mse_loss(x, y, SUM);  div = loss / (B*S*D)

Weights of classes count as much as they weigh.  All forms are equal on one device; ranks with different
numbers of valid tokens, or none, change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument, map_arg

from sp.passes.decompositions.common import wide
from sp.passes.dim_rules import reduced_dims
from sp.passes.fxtools import expression, named, op_name, product, shape, tensor_operands
from sp.passes.loss_rules import MEAN, NONE, SUM, has_classes
from sp.passes.sizes import Sizes
from sp.program import Program

aten = torch.ops.aten
Rewrite = Callable[[fx.Node, fx.Graph, Sizes], fx.Node]
Call = tuple[torch._ops.OpOverload, tuple[object, ...], Mapping[str, object]]


@dataclass(frozen=True)
class Reduce:
    name: str = "reduce"

    def run(self, program: Program) -> Program:
        sizes, changed = Sizes(program), list[str]()
        for node in list(program.graph.nodes):
            rewrite = REWRITES.get(op_name(node)) if node.op == "call_function" else None
            if rewrite is None or not averages_sequence(node, program):
                continue
            with program.graph.inserting_before(node):
                found = rewrite(node, program.graph, sizes)
            node.replace_all_uses_with(found)
            program.graph.erase_node(node)
            changed.append(node.name)
        return program.note(
            self.name, f"averages over the sequence made sums and counts: {', '.join(changed) or 'none'}"
        )

    def check(self, program: Program) -> None:
        left = [node for node in program.graph.nodes if op_name(node) in REWRITES and averages_sequence(node, program)]
        if left:
            raise AssertionError(f"reduce left {left}")


def averages_sequence(node: fx.Node, program: Program) -> bool:
    """Whether this op is a mean whose averaged dims hold the sequence."""
    if node.op != "call_function":
        return False
    if "reduction" in named(node):
        sizes = [size for operand in tensor_operands(node) for size in shape(operand)]
        return named(node)["reduction"] == MEAN and any(map(program.holds_sequence, sizes))
    sizes = shape(cast(fx.Node, node.args[0]))
    dims, _ = reduced_dims(node, len(sizes))
    return any(program.holds_sequence(sizes[dim]) for dim in dims)


def _mean(node: fx.Node, graph: fx.Graph, sizes: Sizes) -> fx.Node:
    source = cast(fx.Node, node.args[0])
    dims, keep = reduced_dims(node, len(shape(source)))
    dtype = wide(node.meta["val"].dtype)
    total = graph.call_function(aten.sum.dim_IntList, (source, dims, keep), {"dtype": dtype})
    count = sizes.node(product([shape(source)[dim] for dim in dims]))
    divided = graph.call_function(aten.div.Tensor, (total, count))
    _describe(node, dtype, total, divided)
    return _cast(divided, node, graph)


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


def _element_loss(node: fx.Node, graph: fx.Graph, sizes: Sizes) -> fx.Node:
    """Losses whose mean divides by the number of elements that they have without a reduction."""
    elements = _faked(node, *_with_reduction(node, NONE)).shape
    return _divided(node, graph, sizes.node(product([expression(size) for size in elements])))


def _class_loss(node: fx.Node, graph: fx.Graph, sizes: Sizes) -> fx.Node:
    """cross_entropy, nll: divides by the number of targets that count, or by the sum of their classes' weights; where
    targets are probabilities, by their number (`cross_entropy_loss_prob_target` in ATen's Loss.cpp)."""
    if has_classes(node):
        return _divided(node, graph, _weighed(node, graph))
    return _element_loss(node, graph, sizes)


def _weighed(node: fx.Node, graph: fx.Graph) -> fx.Node:
    """What the targets that are not ignored weigh together."""
    arguments = named(node)
    target, weight = cast(fx.Node, arguments["target"]), cast("fx.Node | None", arguments["weight"])
    valid = _call(node, graph, aten.ne.Scalar, (target, arguments["ignore_index"]))
    if weight is None:
        return _call(node, graph, aten.sum.default, (valid,))
    safe = _call(node, graph, aten.where.ScalarOther, (valid, target, 0))
    weights = _call(node, graph, aten.index.Tensor, (weight, [safe]))
    counted = _call(node, graph, aten.where.ScalarOther, (valid, weights, 0.0))
    return _call(node, graph, aten.sum.default, (counted,), {"dtype": wide(weight.meta["val"].dtype)})


def _divided(node: fx.Node, graph: fx.Graph, count: fx.Node | int) -> fx.Node:
    total = _summed(node, graph)
    mean = graph.call_function(aten.div.Tensor, (total, count))
    _describe(node, total.meta["val"].dtype, mean)
    return _cast(mean, node, graph)


def _summed(node: fx.Node, graph: fx.Graph) -> fx.Node:
    """The loss of all tokens; in 16 bits, that of each token, summed in 32."""
    dtype = node.meta["val"].dtype
    if wide(dtype) == dtype:
        return _call(node, graph, *_with_reduction(node, SUM))
    loss = _call(node, graph, *_with_reduction(node, NONE))
    return _call(node, graph, aten.sum.default, (loss,), {"dtype": wide(dtype)})


def _with_reduction(node: fx.Node, reduction: int) -> Call:
    """The same loss, reduced in another way."""
    assert isinstance(node.target, torch._ops.OpOverload)
    by_name = {argument.name for argument in node.target._schema.arguments if argument.kwarg_only}
    values = {name: reduction if name == "reduction" else value for name, value in named(node).items()}
    args = tuple(value for name, value in values.items() if name not in by_name)
    return node.target, args, {name: values[name] for name in by_name}


def _call(
    node: fx.Node,
    graph: fx.Graph,
    op: torch._ops.OpOverload,
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
) -> fx.Node:
    """An op of the graph that helps to compute `node`."""
    options = dict(kwargs or {})
    made = graph.call_function(op, cast("tuple[Argument, ...]", args), cast("dict[str, Argument]", options))
    made.meta = {**node.meta, "val": _faked(node, op, args, options)}
    return made


def _faked(
    node: fx.Node, op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> torch.Tensor:
    """What an op makes of the fake tensors of its arguments."""
    values = map_arg(cast(Argument, args), lambda one: one.meta["val"])
    with node.meta["val"].fake_mode:
        return op(*cast("tuple[object, ...]", values), **kwargs)


def _each(names: str, rewrite: Rewrite) -> dict[str, Rewrite]:
    return {f"aten.{name}": rewrite for name in names.split()}


REWRITES: Mapping[str, Rewrite] = {
    **_each("mean", _mean),
    **_each("mse_loss l1_loss smooth_l1_loss huber_loss kl_div soft_margin_loss poisson_nll_loss", _element_loss),
    **_each("binary_cross_entropy binary_cross_entropy_with_logits", _element_loss),
    **_each("margin_ranking_loss hinge_embedding_loss triplet_margin_loss cosine_embedding_loss", _element_loss),
    **_each("cross_entropy_loss nll_loss nll_loss_nd", _class_loss),
}
