"""`register_rule`: how an op of yours carries the sequence, tried before it is believed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from sp.errors import RuleError
from sp.passes.rule_book import BOOK, Entry
from sp.passes.rule_table import TABLE
from sp.passes.rules import Pattern, Refused, Rule, by_pattern, labels_of, parse, pointwise
from sp.testing.oracle import Verdict, WrongRuleError, check_rule
from sp.traceable import TURN

Op = str | torch._ops.OpOverload | torch._ops.OpOverloadPacket
POINTWISE = "pointwise"


@dataclass(frozen=True)
class Registration:
    """A rule in the book.  tried: how often the oracle has found it exact.  As a context manager, it ends with it.

    >>> with sp.register_rule("mylib::twice", "pointwise", examples=[(torch.ones(2, 8, 4),)]) as rule:
    ...     print(rule.tried > 0)  # models that are captured here may call it
    True
    >>> sp.register_rule("mylib::twice", "pointwise", trusted=True).remove()
    """

    entry: Entry
    tried: int

    def remove(self) -> None:
        """Take the rule out again.  Models that are captured already keep their programs."""
        BOOK.remove(self.entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def register_rule(
    op: Op, rule: str | Rule, *, examples: Sequence[Sequence[Any]] = (), trusted: bool = False
) -> Registration:
    """Say where the sequence lives in the result of `op`, given where it lives in its operands.

        >>> rule = sp.register_rule("mylib::twice", "pointwise", examples=[(torch.ones(2, 8, 4),)])

    op: an op of `torch.library` (or its name, "mylib::scaled_norm"); the rule is for all its overloads.
    rule: "... d!, d! -> ... d": one term for each tensor operand, in order, then one for the result (of several
        results, all alike).  Letters are dims; "..." any leading dims, which broadcast; "!" a dim that has to be whole
        on every rank; a letter missing on the right is summed over.  Or "pointwise".  Or a function of a
        `sp.passes.rules.Case` that returns a `Ruling` or raises `Refused`.
    examples: calls of the op, each its positional arguments.  Every dim of every tensor in turn is taken for the
        sequence and spread over 3 ranks, in every layout, at a length that divides and at one that does not; values
        and gradients are compared in fp64 with the whole op's.  For a function as rule, operands share the sequence
        where they share its size: give dims that differ sizes that differ.
    trusted: True to go without examples.  A rule that is not true gives wrong results without an error.

    Every rank registers the same rules: programs are compared before they run, and RankMismatchError is raised where
    they differ.  A Python function or an autograd.Function has no rule: make an op of it.

    Raises RuleError: the op does not exist, changes its operands or has another rule; the rule cannot be read, or the
    examples show that it is not true, or do not show anything."""
    overload = _find(op)
    name, text = overload._schema.name.replace("::", "."), rule if isinstance(rule, str) else repr(rule)
    entry = Entry(name, text, _read(overload, rule))
    if entry.op in TABLE:
        raise RuleError(f"sp has a rule for {entry.op}", remedy="register rules for ops of your own")
    if not examples and not trusted:
        raise RuleError(
            f"the rule for {entry.op} comes without examples",
            needed="examples=[(arguments of one call), …], by which it is tried here and now",
            remedy="pass trusted=True to go without; a wrong rule then gives wrong results",
        )
    with TURN:  # nobody captures a model with a rule that is on trial
        new = BOOK.add(entry)
        try:
            verdicts = [verdict for example in examples for verdict in _try(overload, entry, rule, list(example))]
            tried = sum(verdict.tried.get(entry.op, 0) for verdict in verdicts)
            if examples and not tried:
                reasons = dict.fromkeys(reason for verdict in verdicts for reason in verdict.refused)
                raise RuleError(
                    f"the examples for {entry.op} do not show anything\n  " + "\n  ".join(reasons),
                    needed="a call in which some dim can be spread over ranks",
                )
        except BaseException:
            if new:
                BOOK.remove(entry)
            raise
    return Registration(entry, tried)


def _find(op: object) -> torch._ops.OpOverload:
    """The op itself; of several overloads, the first."""
    op = getattr(op, "_opoverload", op)  # what torch.library.custom_op returns
    if isinstance(op, str):
        space, _, name = op.replace("::", ".").partition(".")
        op = getattr(getattr(torch.ops, space), name.partition(".")[0], None) if name else None
    if isinstance(op, torch._ops.OpOverloadPacket):
        op = getattr(op, op.overloads()[0])
    if not isinstance(op, torch._ops.OpOverload):
        raise RuleError(
            f"{op!r} is no op" if op is not None else "there is no such op",
            needed="an op of torch.library, or its name as in 'mylib::scaled_norm'",
            remedy="a Python function is traced through: make it an op with torch.library.custom_op",
        )
    if op._schema.is_mutable:
        raise RuleError(f"{op} changes its operands in place", needed="an op that returns new tensors")
    return op


def _read(op: torch._ops.OpOverload, rule: str | Rule) -> Rule:
    if rule == POINTWISE:
        return pointwise
    if isinstance(rule, str):
        _check_text(op, rule)
        return by_pattern(rule)
    if not callable(rule):
        raise RuleError(f"{rule!r} is no rule", needed="a string or a function of a Case")
    return rule


def _check_text(op: torch._ops.OpOverload, text: str) -> None:
    """RuleError says what cannot be read."""
    if text.count("->") != 1:
        raise RuleError(f"the rule {text!r} cannot be read", needed="operands -> result, as in '... d!, d! -> ... d'")
    pattern = parse(text)
    terms = [*pattern.operands, pattern.result]
    letters = [letter for term in terms for letter in term]
    wrong = [letter for letter in letters if letter != "..." and not letter.isidentifier()]
    wrong += [letter for term in terms for letter in term[1:] if letter == "..."]
    wrong += [letter for letter in pattern.result if not any(letter in term for term in pattern.operands)]
    wrong += [letter for term in terms for letter in term if term.count(letter) > 1]
    if wrong:
        raise RuleError(
            f"{wrong[0]!r} in the rule {text!r} cannot be read",
            needed="letters, once in each term and each of the result in some operand; '...' first; '!' on the left",
        )
    tensors = [argument for argument in op._schema.arguments if "Tensor" in str(argument.type)]
    if len(pattern.operands) > len(tensors) and not any("[]" in str(argument.type) for argument in tensors):
        raise RuleError(f"the rule {text!r} has {len(pattern.operands)} operands, {op} takes {len(tensors)}")


def _try(op: torch._ops.OpOverload, entry: Entry, rule: object, example: list[Any]) -> Iterator[Verdict]:
    """What the oracle says, with the sequence in each dim in turn.  RuleError."""
    tensors = [value for value in example if isinstance(value, Tensor)]

    def call(*given: Tensor) -> Any:
        supply = iter(given)
        return op(*(next(supply) if isinstance(value, Tensor) else value for value in example))

    for dims in _sequences(rule, tensors):
        try:
            yield check_rule(call, tensors, sequence_dim=dims)
        except WrongRuleError as error:
            raise RuleError(f"the rule {entry.text!r} for {entry.op} is not true\n{error}") from error
        except Exception as error:  # the op's own code
            why = f"with the sequence in dims {dims}: {type(error).__name__}: {error}"
            raise RuleError(f"an example for {entry.op} cannot be run {why}") from error


def _sequences(rule: object, tensors: Sequence[Tensor]) -> Iterator[list[int | None]]:
    """Where the sequence may live: for each dim of each tensor, that dim and those of the others that go with it."""
    names = _names(rule, tensors)
    for name in dict.fromkeys(name for named in names for name in named):
        if all(named.count(name) <= 1 for named in names):
            yield [named.index(name) if name in named else None for named in names]


def _names(rule: object, tensors: Sequence[Tensor]) -> list[list[object]]:
    """A name for each dim of each tensor: the rule's letter or, where the rule is a function, its size."""
    if not isinstance(rule, str):
        return [list[object](tensor.shape) for tensor in tensors]
    pattern = Pattern((("...",),) * len(tensors), ("...",), frozenset()) if rule == POINTWISE else parse(rule)
    found: list[list[object]] = []
    for term, tensor in zip(pattern.operands, tensors, strict=False):
        try:
            named = labels_of(term, tensor.ndim)
        except Refused as refused:
            raise RuleError(f"an example does not fit the rule {rule!r}: {refused.why}") from refused
        sizes = zip(named, tensor.shape, strict=True)
        found.append([label if size != 1 else f"{label} of size 1, {len(found)}" for label, size in sizes])
    return found
