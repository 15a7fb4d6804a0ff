"""Attention: every scaled dot product attention along the sequence → `sp::attention`, with its mask proven.

    reshape = aten.reshape(expand(unsqueeze(k, 2)), [B, 8, S, 64])    keys repeated for 8 query heads
    sdpa    = aten.scaled_dot_product_attention(q, reshape, reshape_1, mask)
    →
    attention = sp.attention(q, k, v, [], 'causal', '', 0.125, S, S, 'striped', 'ring', 'flash', 'sp')
    sdpa      = attention[0]                                          un-expanded k and v will travel

Queries without a sequence (latents, a pooling query, the next token) are the same on every rank and meet each rank's
own keys; the transport `merge` merges what the ranks find.  Whatever cannot be proven is refused.  Masks that nobody
reads any more die here, before anything is placed.  Attention to keys without a sequence (a short text, the same on
every rank) stays what it is: there, nothing travels.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import cast

from torch import fx

from sp.errors import Refusal
from sp.passes.attention_calls import SDPA, AttentionCall, may_hide_rows, with_nan_rows
from sp.passes.builder import Builder
from sp.passes.fxtools import (
    exact_quotient,
    module_path,
    op_name,
    refusal,
    same_size,
    shape,
    source_line,
)
from sp.passes.grouped import ungroup
from sp.passes.index_algebra import IndexAlgebra
from sp.passes.index_rules import INDEX_RULES
from sp.passes.score_sources import laid_out
from sp.passes.score_trace import Untraceable
from sp.passes.score_words import words
from sp.passes.scored import is_scored
from sp.passes.sizes import Sizes
from sp.program import AttentionSite, Program
from sp.runtime.kernels import choose_kernel, filling
from sp.runtime.ops import attention as attention_op

AXIS = "sp"
MERGE = "merge"  # the transport of queries that every rank has


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
        masks = ", ".join(sorted({site.scores for site in sites})) or "none"
        text = f"{len(sites)} attentions rewritten to {program.strategy.name}; masks proven: {masks}"
        return replace(program, attentions=tuple(sites)).refuse(refused).note(self.name, text)

    def check(self, program: Program) -> None:
        left = [node for node in program.graph.nodes if is_ours(node, program) and node.name not in program.refused]
        if left:
            raise AssertionError(f"attention left {left}")

    def _rewrite(self, node: fx.Node, program: Program, algebra: IndexAlgebra) -> AttentionSite | Refusal:
        call = AttentionCall.of(node)
        query, key, value = call.operands
        problem = _misfit(node, program, query, key, value, call.dropout)
        if problem is not None:
            return problem
        transport = program.strategy.transport if program.holds_sequence(shape(query)[2]) else MERGE
        try:
            reading = call.read(program, algebra)
        except Untraceable as untraceable:
            return _explain(untraceable, node)
        key, value, why = ungroup(query, key, value, call.enable_gqa)
        width = int(shape(query)[3])
        q, k, v = (operand.meta["val"] for operand in (query, key, value))
        kernel = self.kernel or choose_kernel(q, k, v)
        filled = filling(q, v) if kernel == "flash" else ""
        build = Builder(node, program)
        leaves = [laid_out(source, build) for source in reading.sources]
        arguments = (
            leaves,
            str(reading.band),
            str(reading.score),
            1 / math.sqrt(width) if call.scale is None else call.scale,
        )
        made = _replace(node, program, (query, key, value), arguments, transport, kernel)
        if call.nan_rows and may_hide_rows(reading):
            with_nan_rows(made, program)
        return AttentionSite(
            module_path(node) or node.name,
            source_line(node),
            reading.band,
            shape(query)[2],
            shape(key)[2],
            heads=int(shape(query)[1]),
            kv_heads=int(shape(key)[1]),
            head_width=width,
            value_width=int(shape(value)[3]),
            item_bytes=node.meta["val"].dtype.itemsize,
            kernel=kernel,
            why="; ".join(filter(None, (why, filled))),
            score=reading.score,
            words=words(reading.score, reading.sources),
            transport=transport,
        )


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
    fits = program.is_length(lengths[0]) or not program.holds_sequence(lengths[0])
    if not fits or not program.is_length(lengths[1]) or not same_size(lengths[1], lengths[2]):
        return refusal(
            node,
            f"queries, keys and values have lengths {lengths} along dim 2",
            "attend from a whole sequence, or from what has none, to a whole sequence",
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
    transport: str,
    kernel: str,
) -> fx.Node:
    """The output of `sp::attention`, which stands where `node` stood."""
    graph, layout = program.graph, program.strategy.layout
    with graph.inserting_before(node):
        sizes = Sizes(program)
        lengths = [sizes.node(shape(operand)[2]) for operand in operands[:2]]
        call = graph.call_function(attention_op, (*operands, *arguments, *lengths, layout, transport, kernel, AXIS))
        output = graph.call_function(operator.getitem, (call, 0))
    fake, query = node.meta["val"], operands[0]
    # No graph reads what is kept for backward; the sums stand for it.
    call.meta = {**node.meta, "val": (fake, fake.new_empty(query.meta["val"].shape[:3]))}
    output.meta = dict(node.meta)
    node.replace_all_uses_with(output)
    graph.erase_node(node)
    return output
