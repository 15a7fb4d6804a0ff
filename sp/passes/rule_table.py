"""Which rule speaks for which op.  A line of data per op; pointwise ops are known by torch's own tag."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch import fx

from sp.passes import compute_rules as computes
from sp.passes import shape_rules as shapes
from sp.passes.fxtools import op_name
from sp.passes.rule_book import BOOK
from sp.passes.rules import Refused, Rule, by_pattern, pointwise

# Names are those of torch.ops.aten, without overload.
PATTERNS: Mapping[str, str] = {
    "linear": "... k!, n k!, n -> ... n",
    "mm": "m k!, k! n -> m n",
    "bmm": "b m k!, b k! n -> b m n",
    "addmm": "n, m k!, k! n -> m n",
}

SHAPES: Mapping[str, Rule] = {
    "embedding": computes.embedding,
    "matmul": computes.matmul,
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), shapes.reshape),
    "flatten": shapes.merging,
    **dict.fromkeys(("transpose", "t", "mT"), shapes.transpose),
    "permute": shapes.permute,
    "unsqueeze": shapes.unsqueeze,
    "squeeze": shapes.squeeze,
    "expand": shapes.expand,
    "slice": shapes.cut,
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unbind"), shapes.split),
    "select": shapes.select,
    "cat": shapes.join,
    "stack": shapes.stack,
    "pad": shapes.pad,
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum"), computes.along(1)),
    **dict.fromkeys(("layer_norm", "rms_norm"), computes.normalized),
    "sum": computes.total_sum,
    "mean": computes.mean,
    "cross_entropy_loss": computes.cross_entropy,
}

# Copies and casts that torch does not tag as pointwise.
POINTWISE = frozenset(
    {"to", "_to_copy", "clone", "contiguous", "detach", "alias", "zeros_like", "ones_like", "full_like"}
)

# Ops that read no more of their operand than dtype and device: the result is whole whatever that is.
CREATIONS = frozenset({"aten.new_ones", "aten.new_zeros", "aten.new_full"})

TABLE: Mapping[str, Rule] = {
    **{f"aten.{name}": by_pattern(text) for name, text in PATTERNS.items()},
    **{f"aten.{name}": rule for name, rule in SHAPES.items()},
    **{f"aten.{name}": pointwise for name in POINTWISE},
    "sp.attention": by_pattern("b! h! s e!, b! g! s e!, b! g! s f! -> b h s f"),
}


def find_rule(node: fx.Node) -> Rule:
    """The rule for this node's op; Refused when there is none."""
    name = op_name(node)
    if isinstance(node.target, torch._ops.OpOverload):
        assert not node.target._schema.is_mutable, f"normalize has refused {name}"
        if registered := BOOK.find(name):
            return registered
        if name in TABLE:
            return TABLE[name]
        if torch.Tag.pointwise in node.target.tags:
            return pointwise
    raise Refused(
        f"sp has no placement rule for {name}",
        "express it with ops that have one (linear, matmul, norms, views, pointwise ops), or keep it off the sequence; "
        "an op of your own gets a rule by sp.register_rule",
    )


def passes_through(node: fx.Node) -> bool:
    """`getitem` hands on one of several results, all placed alike."""
    return node.target is operator.getitem
