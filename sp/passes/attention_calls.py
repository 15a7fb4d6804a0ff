"""What an attention of the graph asks for: `scaled_dot_product_attention`, or one that was written out.

sdpa             = aten.scaled_dot_product_attention(q, k, v, mask, 0.0, False, scale=0.3)
scored_attention = scored_attention(q, k, v, root, score, sink, 0.3, 'nan')
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from sp.passes.builder import Builder
from sp.passes.frames import frame_of
from sp.passes.fxtools import positional, shape
from sp.passes.index_algebra import IndexAlgebra
from sp.passes.mask_proof import shows_itself
from sp.passes.score_read import ATTENTION, Reading, read_mask, read_scores
from sp.passes.score_sources import LeafNode, Number
from sp.passes.score_trace import Tracer
from sp.passes.scored import Scored, is_scored
from sp.program import Program
from sp.score import HIDDEN_BELOW

aten = torch.ops.aten
SDPA = "aten.scaled_dot_product_attention"


@dataclass(frozen=True)
class AttentionCall:
    """mask, is_causal: of the former.  scored: of the latter.  nan_rows: whether a query that sees no key gets nan."""

    operands: tuple[fx.Node, fx.Node, fx.Node]
    scale: float | None
    dropout: float = 0.0
    enable_gqa: bool = False
    mask: fx.Node | None = None
    is_causal: bool = False
    scored: Scored | None = None
    nan_rows: bool = False

    @staticmethod
    def of(node: fx.Node) -> AttentionCall:
        if is_scored(node):
            scored = Scored.of(node)
            operands = (scored.query, scored.key, scored.value)
            return AttentionCall(operands, scored.scale, scored=scored, nan_rows=scored.hidden_rows == "nan")
        query, key, value, mask, dropout, is_causal, scale, enable_gqa = positional(node)
        operands = cast("tuple[fx.Node, fx.Node, fx.Node]", (query, key, value))
        given, masked = cast("float | None", scale), cast("fx.Node | None", mask)
        return AttentionCall(operands, given, cast(float, dropout), bool(enable_gqa), masked, bool(is_causal))

    def read(self, program: Program, algebra: IndexAlgebra) -> Reading:
        """Raises Untraceable."""
        queries, keys = (shape(operand)[2] for operand in self.operands[:2])
        if self.scored is None:
            return read_mask(self.mask, self.is_causal, Tracer(program, algebra, queries, keys))
        tracer = Tracer(program, algebra, queries, keys, self.scored.score)
        sink = None if self.scored.sink is None else (self.scored.sink, frame_of(self.scored.sink, ATTENTION))
        return read_scores(self.scored.root, tracer, sink=sink)


def may_hide_rows(reading: Reading) -> bool:
    """Whether a query may see no key at all, every score being -inf."""
    hard = reading.score.visible is not None or "-inf" in str(reading.score) or not shows_itself(reading.band)
    hard = hard or reading.band.left is not None  # of which fewer keys than queries are all too far back
    masks = [source for source in reading.sources if isinstance(source, LeafNode) and "k" in source.leaf.form]
    hard = hard or _count_large(reading) > 1  # the least number twice is -inf
    return hard or any(source.node.meta["val"].is_floating_point() for source in masks)


def _count_large(reading: Reading) -> int:
    """How many numbers that hide softly stand in a score."""
    numbers = [value for line in reading.score.lines for value in line.arguments]
    numbers += [source.value for source in reading.sources if isinstance(source, Number)]
    return sum(isinstance(value, (int, float)) and abs(value) > -HIDDEN_BELOW for value in numbers)


def with_nan_rows(output: fx.Node, program: Program) -> None:
    """softmax of nothing but -inf is nan, where `sp::attention` gives 0.  Gradients are those of the other queries."""
    call, following = cast(fx.Node, output.args[0]), output.next
    with program.graph.inserting_before(following):
        kept = program.graph.call_function(operator.getitem, (call, 1))
        totals = program.graph.call_function(operator.getitem, (kept, -1))
    kept.meta = {**output.meta, "val": [call.meta["val"][1]]}
    totals.meta = {**output.meta, "val": call.meta["val"][1]}
    build = Builder(following, program, output.meta)
    hidden = build(aten.unsqueeze.default, build(aten.eq.Scalar, totals, -math.inf), -1)
    spoiled = build(aten.masked_fill.Scalar, output, hidden, math.nan)
    output.replace_all_uses_with(spoiled, delete_user_cb=lambda user: user is not spoiled)
