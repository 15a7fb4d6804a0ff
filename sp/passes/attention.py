"""Attention: every scaled dot product attention along the sequence → `sp::attention`, with its mask proven.

    reshape = aten.reshape(expand(unsqueeze(k, 2)), [B, 8, S, 64])    keys repeated for 8 query heads
    sdpa    = aten.scaled_dot_product_attention(q, reshape, reshape_1, mask)
    →
    attention = sp.attention(q, k, v, [], 'causal', '', 0.125, S, S, 'striped', 'ring', 'flash', 'sp')
    sdpa      = attention[0]                                          un-expanded k and v will travel

Whatever cannot be proven is refused.  Masks that nobody reads any more die here, before anything is placed.
Attention to keys without a sequence (a short text, the same on every rank) stays what it is: there, nothing travels.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import fx

from sp.errors import Refusal
from sp.passes.builder import Builder
from sp.passes.frames import frame_of
from sp.passes.fxtools import (
    exact_quotient,
    module_path,
    op_name,
    positional,
    refusal,
    same_size,
    shape,
    source_line,
    tensor,
)
from sp.passes.grouped import ungroup
from sp.passes.index_algebra import IndexAlgebra
from sp.passes.index_rules import INDEX_RULES
from sp.passes.mask_proof import shows_itself
from sp.passes.score_read import ATTENTION, Reading, read_mask, read_scores
from sp.passes.score_sources import LeafNode, laid_out
from sp.passes.score_trace import Tracer, Untraceable
from sp.passes.scored import Scored, is_scored
from sp.passes.sizes import Sizes
from sp.program import AttentionSite, Program
from sp.runtime.ops import attention as attention_op

SDPA = "aten.scaled_dot_product_attention"
AXIS = "sp"
aten = torch.ops.aten


@dataclass(frozen=True)
class RewriteAttention:
    """kernel: name of the kernel to use everywhere, None to choose by device and dtype."""

    kernel: str | None = None
    name: str = "attention"

    def run(self, program: Program) -> Program:
        sites: list[AttentionSite] = []
        refused: dict[str, Refusal] = {}
        algebra = IndexAlgebra(INDEX_RULES)
        for node in [node for node in program.graph.nodes if is_ours(node, program)]:
            found = self._rewrite(node, program, algebra)
            if isinstance(found, Refusal):
                refused[node.name] = found
            else:
                sites.append(found)
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()
        masks = sorted({str(site.mask) for site in sites})
        proven = ", ".join(masks) or "none"
        text = f"{len(sites)} attentions rewritten to {program.strategy.name}; masks proven: {proven}"
        return replace(program, attentions=tuple(sites)).refuse(refused).note(self.name, text)

    def check(self, program: Program) -> None:
        left = [node for node in program.graph.nodes if is_ours(node, program) and node.name not in program.refused]
        assert not left, f"attention left {left}"

    def _rewrite(self, node: fx.Node, program: Program, algebra: IndexAlgebra) -> AttentionSite | Refusal:
        call = _Call.of(node)
        query, key, value = call.operands
        problem = _misfit(node, program, query, key, value, call.dropout)
        if problem is not None:
            return problem
        try:
            reading = call.read(program, algebra)
        except Untraceable as untraceable:
            return _explain(untraceable, node)
        band = reading.band
        if band.left is not None and not same_size(shape(query)[2], shape(key)[2]):
            return refusal(node, f"its mask {band} hides every key from some query", "use a mask without a window")
        key, value, why = ungroup(query, key, value, call.enable_gqa)
        width = int(shape(query)[3])
        kernel = self.kernel or choose_kernel(tensor(query), width, int(shape(value)[3]))
        build = Builder(node, program)
        leaves = [laid_out(source, build) for source in reading.sources]
        arguments = (leaves, str(band), str(reading.score), 1 / math.sqrt(width) if call.scale is None else call.scale)
        made = _replace(node, program, (query, key, value), arguments, kernel)
        if call.nan_rows and may_hide_rows(reading):
            _with_nan_rows(made, program)
        return AttentionSite(
            module_path(node) or node.name,
            source_line(node),
            band,
            shape(query)[2],
            shape(key)[2],
            heads=int(shape(query)[1]),
            kv_heads=int(shape(key)[1]),
            head_width=width,
            value_width=int(shape(value)[3]),
            item_bytes=node.meta["val"].dtype.itemsize,
            kernel=kernel,
            why=why,
        )


@dataclass(frozen=True)
class _Call:
    """What a `scaled_dot_product_attention` or a `scored_attention` asks for.

    mask, is_causal: of the former.  scored: of the latter.  nan_rows: whether a query that sees no key gets nan."""

    operands: tuple[fx.Node, fx.Node, fx.Node]
    scale: float | None
    dropout: float = 0.0
    enable_gqa: bool = False
    mask: fx.Node | None = None
    is_causal: bool = False
    scored: Scored | None = None
    nan_rows: bool = False

    @staticmethod
    def of(node: fx.Node) -> _Call:
        if is_scored(node):
            scored = Scored.of(node)
            operands = (scored.query, scored.key, scored.value)
            return _Call(operands, scored.scale, scored=scored, nan_rows=scored.hidden_rows == "nan")
        query, key, value, mask, dropout, is_causal, scale, enable_gqa = positional(node)
        operands = cast("tuple[fx.Node, fx.Node, fx.Node]", (query, key, value))
        given, masked = cast("float | None", scale), cast("fx.Node | None", mask)
        return _Call(operands, given, cast(float, dropout), bool(enable_gqa), masked, bool(is_causal))

    def read(self, program: Program, algebra: IndexAlgebra) -> Reading:
        """Raises Untraceable."""
        queries, keys = (shape(operand)[2] for operand in self.operands[:2])
        if self.scored is None:
            return read_mask(self.mask, self.is_causal, Tracer(program, algebra, queries, keys))
        tracer = Tracer(program, algebra, queries, keys, self.scored.score)
        sink = None if self.scored.sink is None else (self.scored.sink, frame_of(self.scored.sink, ATTENTION))
        return read_scores(self.scored.root, tracer, sink=sink)


def is_ours(node: fx.Node, program: Program) -> bool:
    """Whether this is an attention along a sequence: of tokens to those on other ranks."""
    if is_scored(node):
        return True
    sizes = shape(cast(fx.Node, node.args[1])) if op_name(node) == SDPA else ()
    return any(map(program.holds_sequence, sizes[2:] if len(sizes) == 4 else sizes))


def _explain(untraceable: Untraceable, attention: fx.Node) -> Refusal:
    name = "scores are" if is_scored(attention) else "mask is"
    return refusal(
        attention,
        f"its {name} not known tile by tile: {untraceable.why} (at {untraceable.node.name})",
        "build it from positions, from values of one token each, or pass it in whole, as an input",
    )


def _misfit(
    node: fx.Node, program: Program, query: fx.Node, key: fx.Node, value: fx.Node, dropout: float
) -> Refusal | None:
    """Why these operands are not attention along a sequence, None if they are."""
    if any(len(shape(operand)) != 4 for operand in (query, key, value)):
        return refusal(node, "its operands are not (batch, heads, sequence, head width)", "give them four dims")
    if dropout:
        return refusal(node, f"it drops out scores with probability {dropout}", "set the attention dropout to 0")
    lengths = [shape(operand)[2] for operand in (query, key, value)]
    if not all(map(program.is_length, lengths)) or not same_size(lengths[1], lengths[2]):
        return refusal(
            node,
            f"queries, keys and values have lengths {lengths} along dim 2",
            "attend from a whole sequence to a whole sequence",
        )
    batches, heads = ([shape(operand)[dim] for operand in (query, key, value)] for dim in (0, 1))
    if len(set(batches)) > 1 or heads[1] != heads[2] or exact_quotient(heads[0], heads[1]) is None:
        found = f"its operands have batches {batches} and heads {heads}"
        return refusal(
            node, f"{found}, which it broadcasts", "expand them: one batch, key heads that divide the query's"
        )
    return None


def _replace(
    node: fx.Node,
    program: Program,
    operands: tuple[fx.Node, fx.Node, fx.Node],
    arguments: tuple[list[fx.Node], str, str, float],
    kernel: str,
) -> fx.Node:
    """The output of `sp::attention`, which stands where `node` stood."""
    graph, strategy = program.graph, program.strategy
    with graph.inserting_before(node):
        sizes = Sizes(program)
        lengths = [sizes.node(shape(operand)[2]) for operand in operands[:2]]
        call = graph.call_function(
            attention_op, (*operands, *arguments, *lengths, strategy.layout, strategy.transport, kernel, AXIS)
        )
        output = graph.call_function(operator.getitem, (call, 0))
    fake, query = node.meta["val"], operands[0]
    call.meta = {**node.meta, "val": (fake, fake.new_empty(query.meta["val"].shape[:3]))}
    output.meta = dict(node.meta)
    node.replace_all_uses_with(output)
    graph.erase_node(node)
    return output


def may_hide_rows(reading: Reading) -> bool:
    """Whether a query may see no key at all, every score being -inf."""
    hard = reading.score.visible is not None or "-inf" in str(reading.score) or not shows_itself(reading.band)
    masks = [source for source in reading.sources if isinstance(source, LeafNode) and "k" in source.leaf.form]
    return hard or any(source.node.meta["val"].is_floating_point() for source in masks)


def _with_nan_rows(output: fx.Node, program: Program) -> None:
    """softmax of nothing but -inf is nan, where `sp::attention` gives 0.  (Gradients are those of the other queries.)"""
    call, following = cast(fx.Node, output.args[0]), output.next
    with program.graph.inserting_before(following):
        totals = program.graph.call_function(operator.getitem, (call, 1))
    totals.meta = {**output.meta, "val": call.meta["val"][1]}
    build = Builder(following, program, output.meta)
    hidden = build(aten.unsqueeze.default, build(aten.eq.Scalar, totals, -math.inf), -1)
    spoiled = build(aten.masked_fill.Scalar, output, hidden, math.nan)
    output.replace_all_uses_with(spoiled, delete_user_cb=lambda user: user is not spoiled)


def choose_kernel(query: torch.Tensor | None, width: int, value_width: int) -> str:
    """`flash` where torch's FlashAttention takes these operands, otherwise `dense`; the report shows which."""
    assert query is not None
    if width != value_width:
        return "dense"
    if query.device.type == "cuda":
        fits = query.dtype in (torch.float16, torch.bfloat16) and width % 8 == 0 and width <= 256
        return "flash" if fits else "dense"
    return "flash" if query.device.type in ("cpu", "meta") else "dense"
