"""Attention as `RewriteAttention` takes it, where a model writes it without scaled_dot_product_attention.

    softmax(root) @ value      root: a function of `score`, which is scale * query @ key^T, and of positions and masks

`scored_attention` stands in the graph between the pass that finds it and the pass that rewrites it.  It can be run, so
that a graph with it can be held against the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from sp.runtime.scores.op_table import is_evaluable


def scored_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    root: Tensor,
    score: Tensor,
    sink: Tensor | None,
    scale: float,
    hidden_rows: str,
) -> Tensor:
    """[B, H, S, E], [B, G, T, E], [B, G, T, F] → [B, H, S, F].

    root: what softmax sees, [B, H, S, T].  score: the part of it that is scale * query @ key^T.  sink: the score of one
    more key of value zero, [·, H, ·, 1], or None.  hidden_rows: what a query gets that sees no key, "nan" or "zero"."""
    del query, key, score, scale
    scores = root if sink is None else torch.cat([root, sink.expand(*root.shape[:-1], 1)], -1)
    weights = scores.softmax(-1)[..., : root.shape[-1]]
    if hidden_rows == "zero":
        weights = weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)
    groups = root.shape[1] // value.shape[1]
    return weights.to(value.dtype) @ value.repeat_interleave(groups, 1)


@dataclass(frozen=True)
class Scored:
    """The operands of one `scored_attention`."""

    query: fx.Node
    key: fx.Node
    value: fx.Node
    root: fx.Node
    score: fx.Node
    sink: fx.Node | None
    scale: float
    hidden_rows: str

    @staticmethod
    def of(node: fx.Node) -> Scored:
        return Scored(*cast(tuple[Any, ...], node.args))


def is_elementwise(node: fx.Node) -> bool:
    """Whether a score may go through this op."""
    return isinstance(node.target, torch._ops.OpOverload) and is_evaluable(str(node.target).removeprefix("aten."))


def is_scored(node: fx.Node) -> bool:
    return node.target is scored_attention
