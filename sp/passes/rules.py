"""Placement rules as data: how an op carries the sequence from its operands to its result.

`'... k!, n k! -> ... n'` names the dims of each tensor operand and of the result: letters are dims, `...` stands for
any leading ones, `!` marks a dim that must stay whole on every rank, and a letter missing on the right is summed over,
so that sharding it leaves a partial sum.  Every rule is a claim: cut the operands as it says, run the op on each part,
stitch, and the whole result comes out.  The tests try each claim (`sp.testing.oracle`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import sympy
from torch import fx

from sp.passes.fxtools import same_size, shape
from sp.program import Partial, Placement, Replicated, Sharded


class Refused(Exception):
    """This op cannot carry the sequence that way."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


@dataclass(frozen=True)
class Case:
    """The question put to a rule: `node` has an operand `anchor` that is `placement`; what follows?

    symbols: the sizes of all sequences of the program."""

    node: fx.Node
    anchor: fx.Node
    placement: Sharded
    operands: tuple[fx.Node, ...]
    symbols: Set[sympy.Basic] = frozenset()

    def holds_sequence(self, size: sympy.Expr) -> bool:
        return not self.symbols.isdisjoint(size.free_symbols)


Lowering = Literal["call", "narrow", "gather", "pad", "join", "noise"]
TRAVELS = frozenset({"gather", "pad", "join"})  # tokens change ranks


@dataclass(frozen=True)
class Ruling:
    """The answer: the result's placement, what each operand must be, and how a rank computes its part.

    lowering: "call" is the op itself, with `arguments` changed: position in the schema → a size expression, an int, or
        a list of them.  All others have an entry in `sp.passes.lowering`.
    span: what the op leaves of the sequence, where the result is no more sharded."""

    output: Placement
    operands: Mapping[fx.Node, Placement]
    arguments: Mapping[int, object] = field(default_factory=dict[int, object])
    lowering: Lowering = "call"
    span: Sharded | None = None


Rule = Callable[[Case], Ruling]


def unary(case: Case, output: Placement, arguments: Mapping[int, object] | None = None) -> Ruling:
    """The ruling for an op of one tensor."""
    return Ruling(output, {case.anchor: case.placement}, arguments or {})


@dataclass(frozen=True)
class Pattern:
    """A parsed rule string.  Each term is a tuple of letters; `...` may stand first."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    whole: frozenset[str]


@lru_cache(maxsize=256)
def parse(text: str) -> Pattern:
    left, right = text.split("->")
    terms = [tuple(term.split()) for term in left.split(",")]
    whole = frozenset(letter[:-1] for term in terms for letter in term if letter.endswith("!"))
    bare = tuple(tuple(letter.removesuffix("!") for letter in term) for term in terms)
    return Pattern(bare, tuple(right.split()), whole)


def by_pattern(text: str) -> Rule:
    """The rule that a string describes."""
    return lambda case: rule_from(parse(text), case)


def pointwise(case: Case) -> Ruling:
    """Every dim of every operand meets the same dim of the result, broadcasting from the right."""
    return rule_from(Pattern((("...",),) * len(case.operands), ("...",), frozenset()), case)


def rule_from(pattern: Pattern, case: Case) -> Ruling:
    if len(pattern.operands) < len(case.operands):
        raise Refused(f"its rule knows {len(pattern.operands)} operands, here are {len(case.operands)}", "add a rule")
    terms = zip(case.operands, pattern.operands, strict=False)
    labels = [(operand, labels_of(term, len(shape(operand)))) for operand, term in terms]
    label = next(names[case.placement.dim] for operand, names in labels if operand is case.anchor)
    if label in pattern.whole:
        raise Refused(
            f"it needs dim {case.placement.dim} of {case.anchor.name} whole, and the sequence lives there",
            "move the sequence to another dim, or keep this op on values without the sequence",
        )
    needs: dict[fx.Node, Placement] = {}
    for operand, names in labels:
        need = operand_need(case, operand, _place_of(label, names))
        if needs.setdefault(operand, need) != need:
            raise Refused(f"{operand.name} is needed as {needs[operand]} and as {need}", "use the sequence once")
    dim = _place_of(label, labels_of(pattern.result, len(shape(case.node))))
    return Ruling(Partial() if dim is None else replace(case.placement, dim=dim), needs)


def labels_of(term: tuple[str, ...], ndim: int) -> tuple[str, ...]:
    """One label per dim; those under `...` count from its right end, which is how broadcasting aligns them."""
    open_ended = term[:1] == ("...",)
    if ndim < len(term) - open_ended or (ndim > len(term) and not open_ended):
        raise Refused(f"an operand has {ndim} dims, its rule says {' '.join(term)!r}", "reshape it")
    if not open_ended:
        return term
    hidden = ndim - (len(term) - 1)
    return (*(f".{hidden - index}" for index in range(hidden)), *term[1:])


def _place_of(label: str, labels: tuple[str, ...]) -> int | None:
    return labels.index(label) if label in labels else None


def operand_need(case: Case, operand: fx.Node, dim: int | None) -> Placement:
    """What an operand must be when its dim `dim` meets the sequence: cut the same way, or without the sequence."""
    sizes = shape(operand)
    if dim is None or (dim < len(sizes) and sizes[dim] == 1):
        return Replicated()
    size = sizes[dim] if dim < len(sizes) else sympy.Integer(0)
    whole = shape(case.anchor)[case.placement.dim]
    if not same_size(size, whole):
        raise Refused(
            f"dim {dim} of {operand.name} has size {size} where the sequence of {case.anchor.name} has {whole}",
            "give both the same length",
        )
    return replace(case.placement, dim=dim)
