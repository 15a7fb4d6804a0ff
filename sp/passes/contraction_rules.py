"""Placement rules for products of tensors, as letters: a contracted dim that holds the sequence leaves a partial sum.

    einsum("bsd,bse->bde", x: sharded(dim 1), y: sharded(dim 1))    →  partial(sum)
    matmul(x: sharded(dim 1), w)                                    →  sharded(dim 1)
    addmm(b, x: sharded(dim 0), w)                                  →  sharded(dim 0)

A bias would be added once per rank: where there is one, contracted dims must be whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from torch import fx

from sp.passes.fxtools import named, normal_dim, positional, shape
from sp.passes.rules import Case, Pattern, Refused, Rule, Ruling, by_pattern, parse, pointwise, rule_from

Letters = tuple[str, ...]


def linear(case: Case) -> Ruling:
    biased_ = len(case.operands) > 2
    return by_pattern("... k!, n k!, n -> ... n" if biased_ else "... k, n k -> ... n")(case)


def matmul(case: Case) -> Ruling:
    """A vector takes part as one row or one column, which the result does not have."""
    left, right = (len(shape(cast(fx.Node, operand))) for operand in positional(case.node))
    row, column = ("" if left == 1 else "m "), ("" if right == 1 else " n")
    first, second = ("k" if left == 1 else "... m k"), ("k" if right == 1 else "... k n")
    return by_pattern(f"{first}, {second} -> ... {row}{column}")(case)


def biased(product: str) -> Rule:
    """A product and, as first operand, a bias that broadcasts to its result."""

    def rule(case: Case) -> Ruling:
        pattern = parse(product)
        missing = len(pattern.result) - len(shape(case.operands[0]))
        return rule_from(replace(pattern, operands=(pattern.result[missing:], *pattern.operands)), case)

    return rule


def einsum(case: Case) -> Ruling:
    """Letters as the equation has them.  A letter that stands twice in one operand is not the sequence's: that operand
    would be sequence × sequence."""
    left, arrow, right = cast(str, named(case.node)["equation"]).replace(" ", "").partition("->")
    terms = left.split(",")
    once = sorted(letter for letter, count in Counter(left).items() if count == 1 and letter.isalpha())
    right = right if arrow else "..." + "".join(once)
    operands = tuple(spelled(term, node) for term, node in zip(terms, case.operands, strict=True))
    return rule_from(Pattern(operands, spelled(right, case.node), frozenset()), case)


def spelled(term: str, node: fx.Node) -> Letters:
    """One letter per dim; `...` stands for as many as the others leave, which are counted from its right end."""
    head, dots, tail = term.partition("...")
    hidden = len(shape(node)) - len(head) - len(tail) if dots else 0
    return (*head, *(f".{hidden - index}" for index in range(hidden)), *tail)


def tensordot(case: Case) -> Ruling:
    arguments = named(case.node)
    pairs = zip(cast(list[int], arguments["dims_self"]), cast(list[int], arguments["dims_other"]), strict=True)
    return _contracted(case, list(pairs))


def inner(case: Case) -> Ruling:
    """The last dims of both; a number multiplies."""
    if any(not shape(operand) for operand in case.operands):
        return pointwise(case)
    return _contracted(case, [(-1, -1)])


def _contracted(case: Case, pairs: Sequence[tuple[int, int]]) -> Ruling:
    left, right = ([f"{side}{dim}" for dim in range(len(shape(case.operands[at])))] for at, side in enumerate("ab"))
    shared = [(normal_dim(a, len(left)), normal_dim(b, len(right))) for a, b in pairs]
    for a, b in shared:
        right[b] = left[a]
    gone = {left[a] for a, _ in shared}
    result = tuple(letter for letter in (*left, *right) if letter not in gone)
    return rule_from(Pattern((tuple(left), tuple(right)), result, frozenset()), case)


def chain(case: Case) -> Ruling:
    """chain_matmul, multi_dot: each matrix meets the next; the first and the last one may be vectors."""
    first, *_, last = (len(shape(operand)) for operand in case.operands)
    names = [(f"k{number}", f"k{number + 1}") for number in range(len(case.operands))]
    terms: list[Letters] = [*names]
    terms[0], terms[-1] = names[0][2 - first :], names[-1][:last]
    result = (*names[0][: first - 1], *names[-1][1:last])
    return rule_from(Pattern(tuple(terms), result, frozenset()), case)


def cross_attention(case: Case) -> Ruling:
    """scaled_dot_product_attention of sharded queries over keys and values that every rank has: nothing travels."""
    arguments = named(case.node)
    if arguments["is_causal"] or arguments["dropout_p"]:
        raise Refused("it is causal or drops out scores, which only attention along the sequence may", "leave both out")
    return by_pattern("... s e!, ... t! e!, ... t! f!, ... s t! -> ... s f")(case)
