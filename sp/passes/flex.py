"""Flex: flex_attention → the ops that define it, which `Recognize` reads like any attention that is written out.

    flex_attention = flex_attention(q, k, v, sdpa_score0, (S, S, …, sdpa_mask0), 0.25, …)
        sdpa_score0(score, b, h, q_idx, kv_idx) = 50 * tanh(score / 50)
        sdpa_mask0(b, h, q_idx, kv_idx, doc)    = doc[b, q_idx] == doc[b, kv_idx]
    →
    mul     = aten.mul(aten.matmul(q, kT), 0.25);   mul_1 = aten.mul(aten.tanh(aten.div(mul, 50)), 50)
    eq      = aten.eq(aten.index(doc, [b, q_idx]), aten.index(doc, [b, kv_idx]))     b [B, 1, 1, 1], q_idx [1, 1, S, 1]
    softmax = aten._safe_softmax(aten.where(eq, mul_1, -inf), -1);   aten.matmul(softmax, v)

Which blocks a kernel may skip follows from the mask function, so block masks die here: those that are made from it, as
one can see.  Others could hide more than it does, and are refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from sp.errors import Refusal, UnsupportedModelError
from sp.passes.builder import Builder
from sp.passes.flex_blocks import INTO_VMAP, ancestors, blocks_follow
from sp.passes.flex_lookups import USE_FUNCTIONS, Lookups
from sp.passes.fxtools import attribute, op_name, refusal, same_size, shape, source_line, tensor
from sp.passes.rules import Refused
from sp.passes.scored import is_elementwise
from sp.program import Program

aten = torch.ops.aten
FLEX = "flex_attention"


@dataclass(frozen=True)
class Flex:
    name: str = "flex"

    def run(self, program: Program) -> Program:
        refused, nodes = dict[str, Refusal](), [node for node in program.graph.nodes if op_name(node) == FLEX]
        if nodes:
            program.graph.eliminate_dead_code()  # what nobody reads of their results
        for node in nodes:
            try:
                _write_out(node, program)
            except Refused as reason:
                refused[node.name] = refusal(node, reason.why, reason.remedy)
                _forget_blocks(node)  # no other pass can read what vmap leaves in a graph
        if nodes:
            program.graph.eliminate_dead_code()
        _refuse_vmap(program)
        count = len(nodes) - len(refused)
        text = f"{count} flex_attention{'' if count == 1 else 's'} written out" if nodes else "no flex_attention"
        return program.refuse(refused).note(self.name, text)

    def check(self, program: Program) -> None:
        left = [node for node in program.graph.nodes if op_name(node) == FLEX and node.name not in program.refused]
        if left:
            raise AssertionError(f"flex left {left}")


def _refuse_vmap(program: Program) -> None:
    """What vmap has left is for no pass to read; of block masks that others read, it is of one position only."""
    left = [node for node in program.graph.nodes if op_name(node) == INTO_VMAP]
    if left:
        why = "torch.vmap (or create_block_mask, read by other than flex_attention) has no ops of its own in a graph"
        remedy = "write it with a batch dim; pass block masks to flex_attention alone"
        refusals = list({source_line(node): refusal(node, why, remedy) for node in left}.values())
        raise UnsupportedModelError("the graph holds values of torch.vmap", refusals=refusals)


@dataclass(frozen=True)
class _Call:
    """The arguments of the operator."""

    query: fx.Node
    key: fx.Node
    value: fx.Node
    score_mod: fx.Node
    block_mask: tuple[object, ...]  # …, mask function
    scale: float
    options: Mapping[str, object]
    score_buffers: tuple[object, ...] = ()
    mask_buffers: tuple[object, ...] = ()

    @property
    def mask_mod(self) -> fx.Node:
        return cast(fx.Node, self.block_mask[-1])


def _write_out(node: fx.Node, program: Program) -> None:
    call = _Call(*cast(tuple[Any, ...], node.args))
    output = _only_output(node)
    mask, score_mod = _body(call.mask_mod), _body(call.score_mod)
    blocks = _blocks(node)
    if not _is_everything(mask) and not blocks_follow(mask, call.mask_buffers, blocks):
        raise Refused(
            "its block mask is not seen to be made from its own mask function: blocks may hide more than the function",
            "call create_block_mask inside of forward, and leave the block mask as it is",
        )
    build = Builder(node, program, {**output.meta, "nn_module_stack": node.meta.get("nn_module_stack", {})})
    positions = _positions(call, build)
    score = _scores(call, build)
    lookups = Lookups(build, positions)
    score = _inlined(score_mod, (score, *positions, *call.score_buffers), lookups)
    if not _is_everything(mask):
        seen = _inlined(mask, (*positions, *call.mask_buffers), lookups)
        score = build(aten.where.ScalarOther, seen, score, -math.inf)
    weights = build.cast(build(aten._safe_softmax.default, score, -1), call.value.meta["val"].dtype)
    output.replace_all_uses_with(build(aten.matmul.default, weights, _for_all_heads(call.value, call.query, build)))
    _forget_blocks(node)
    for user in list(node.users):
        program.graph.erase_node(user)
    program.graph.erase_node(node)


def _blocks(node: fx.Node) -> list[fx.Node]:
    """What says which blocks to skip: counts, indices, of the backward pass too."""
    given = cast(tuple[object, ...], node.args[4])[:-1]
    return [each for each in given if isinstance(each, fx.Node) and tensor(each) is not None]


def _forget_blocks(node: fx.Node) -> None:
    """And what nobody else reads of how they were computed; it writes in place, which dead code elimination keeps."""
    made = ancestors(_blocks(node), set())
    node.args = (*node.args[:4], (cast(tuple[Any, ...], node.args[4])[-1],), *node.args[5:])
    for each in reversed(list(node.graph.nodes)):
        operands = each.all_input_nodes
        only_reads = bool(operands) and all(operand in made for operand in operands)  # an assertion
        if each.op == "call_function" and not each.users and (each in made or only_reads):
            node.graph.erase_node(each)


def _only_output(node: fx.Node) -> fx.Node:
    """The attention itself, of it, the log-sum-exp and the maximum."""
    for user in node.users:
        assert user.target is operator.getitem, f"{user} reads all results of {node}"
        if user.args[1] != 0 and user.users:
            raise Refused("its log-sum-exp or maxima are read", "leave out return_lse and return_aux")
    return next(user for user in node.users if user.args[1] == 0)


def _body(function: fx.Node) -> fx.Graph:
    held = attribute(function)
    assert isinstance(held, fx.GraphModule), f"{function} holds no graph"
    return held.graph


def _is_everything(mask: fx.Graph) -> bool:
    """Of no mask at all, torch makes a function that is true everywhere, and blocks without an end."""
    calls = [node for node in mask.nodes if node.op == "call_function"]
    return [op_name(node) for node in calls] == ["aten.new_ones"] and mask.output_node().args[0] is calls[0]


def _positions(call: _Call, build: Builder) -> tuple[fx.Node, ...]:
    """The four indices, int32 as torch has them: [B, 1, 1, 1], [1, H, 1, 1], [1, 1, S, 1], [1, 1, 1, T]."""
    sizes = (*shape(call.query)[:3], shape(call.key)[2])
    device, made = call.query.meta["val"].device, list[fx.Node]()
    for place, size in enumerate(sizes):
        index = build(aten.arange.default, build.size(size), dtype=torch.int32, device=device, pin_memory=False)
        made.append(build(aten.view.default, index, [-1 if place == dim else 1 for dim in range(4)]))
    return tuple(made)


def _scores(call: _Call, build: Builder) -> fx.Node:
    """scale * query @ key^T in at least fp32, [B, H, S, T]."""
    query, key = call.query, _for_all_heads(call.key, call.query, build)
    wide = torch.promote_types(query.meta["val"].dtype, torch.float32)
    query, key = build.cast(query, wide), build.cast(key, wide)
    product = build(aten.matmul.default, query, build(aten.transpose.int, key, -2, -1))
    return build(aten.mul.Tensor, product, call.scale)


def _for_all_heads(node: fx.Node, query: fx.Node, build: Builder) -> fx.Node:
    """Keys and values repeated for the query's heads, as models write it."""
    (batch, heads, *_), (own, groups, *rest) = shape(query), shape(node)
    if not same_size(heads, groups):
        sizes = [build.size(size) for size in (own, groups, heads / groups, *rest)]
        node = build(aten.expand.default, build(aten.unsqueeze.default, node, 2), sizes)
        node = build(aten.reshape.default, node, [build.size(size) for size in (own, heads, *rest)])
    if not same_size(batch, own):
        node = build(aten.expand.default, node, [build.size(size) for size in (batch, heads, *rest)])
    return node


def _inlined(body: fx.Graph, arguments: Sequence[object], lookups: Lookups) -> fx.Node:
    """The function's ops on whole tensors instead of on scalars.  Raises Refused for what is not done elementwise."""
    known: dict[fx.Node, object] = dict(zip(body.find_nodes(op="placeholder"), arguments, strict=True))
    for node in body.nodes:
        if node.op == "output":
            return cast(fx.Node, known[cast(fx.Node, node.args[0])])
        if node.op == "call_function":
            known[node] = _called(node, known, lookups)
    raise AssertionError("a graph ends with its output")


def _called(node: fx.Node, known: Mapping[fx.Node, object], lookups: Lookups) -> object:
    def value(operand: fx.Node) -> Any:
        return known.get(operand, operand)

    args, kwargs = map_arg(node.args, value), map_arg(node.kwargs, value)
    if op_name(node) == "flat_apply":  # x[i, j] of a tensor x, which the operator keeps whole under vmap
        return lookups.find(cast(fx.Node, args[3]), args[4:])
    if not (is_elementwise(node) or op_name(node) in _FILLS):
        raise Refused(f"its function calls {op_name(node)}, which does not work element by element", USE_FUNCTIONS)
    return lookups.build(cast(torch._ops.OpOverload, node.target), *args, **kwargs)


# Scalars, which broadcast.
_FILLS = frozenset(
    f"aten.{name}" for name in ["new_ones", "new_zeros", "new_full", "full", "ones", "zeros", "scalar_tensor"]
)
