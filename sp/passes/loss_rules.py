"""Placement rules for losses: one number per token, or the sum of these.  `reduce` has made sums of the means.

    mse_loss(x: sharded(dim 1), y, SUM)                               →  partial(sum)
    cross_entropy_loss(x: sharded(dim 0), t, NONE)                    →  sharded(dim 0)
    cross_entropy_loss(x [B, C, S]: sharded(dim 2), t [B, S], SUM)    →  partial(sum)

Targets and weights of elements are cut like the scores that they meet; weights of classes are whole.
"""

from __future__ import annotations

from typing import cast

from torch import fx

from sp.passes.dim_rules import by_dims, letters
from sp.passes.fxtools import named, shape
from sp.passes.rules import Case, Pattern, Refused, Ruling, rule_from

NONE, MEAN, SUM = 0, 1, 2


def per_element(case: Case) -> Ruling:
    """mse, l1, huber, binary cross entropy, …: operands broadcast."""
    ndim = max(len(shape(operand)) for operand in case.operands)
    return by_dims(case, _result(case, letters(ndim)), ())


def per_vector(case: Case) -> Ruling:
    """triplet_margin, cosine_embedding: one number for the features in the last dim of the first operand."""
    *rows, features = letters(len(shape(case.operands[0])))
    labels = named(case.node).get("target")
    terms = tuple(tuple(rows) if operand is labels else (*rows, features) for operand in case.operands)
    return rule_from(Pattern(terms, _result(case, tuple(rows)), frozenset({features})), case)


def per_class(case: Case) -> Ruling:
    """cross_entropy, nll: scores [N, C, …] and classes [N, …], or probabilities shaped like the scores."""
    scores, target = case.operands[:2]
    every = letters(len(shape(scores)))
    at = min(1, len(every) - 1)
    if case.anchor is scores and case.placement.dim == at:
        where = f"dim {at} of {scores.name}, where the sequence lives"
        raise Refused(f"it compares classes along {where}", "put the classes into that dim, the sequence into another")
    rows = (*every[:at], *every[at + 1 :])
    meets = every if len(shape(target)) == len(every) else rows
    terms = (every, meets, (every[at],))[: len(case.operands)]
    return rule_from(Pattern(terms, _result(case, rows), frozenset({every[at]})), case)


def _result(case: Case, kept: tuple[str, ...]) -> tuple[str, ...]:
    reduction = named(case.node)["reduction"]
    assert reduction != MEAN, "reduce has made a sum of this mean"
    return kept if reduction == NONE else ()


def has_classes(node: fx.Node) -> bool:
    """Whether the targets of a loss are class indices, not probabilities."""
    return not cast(fx.Node, named(node)["target"]).meta["val"].is_floating_point()
