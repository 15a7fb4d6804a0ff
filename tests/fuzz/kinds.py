"""Kinds: the form of a value, and how long it is, so that a program fits together before it is run.

"hidden n, hidden n -> hidden n-1"      two values of one length in, a value one token shorter out
"hidden n, hidden m -> hidden n+m"      two values of any lengths in
"hidden S, labels S -> scalar"          of the length of the ids exactly
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What each form looks like, n the length: B batch, D features, H heads.
FORMS: Mapping[str, str] = {
    "ids": "[B, n] integers",
    "labels": "[B, n] integers, some of them -100",
    "flags": "[B, n] booleans that depend on ids and positions alone",
    "token": "[B, n]",
    "hidden": "[B, n, D]",
    "heads": "[B, H, n, D / H]",
    "merged": "[B * n, D]",
    "first": "[n, B, D]",
    "channels": "[B, D, n]",
    "few": "[B, 2, D]",
    "pooled": "[B, D]",
    "scalar": "[]",
}
LEAST, MOST = -3, 4  # tokens that a value may have more than its sequences


@dataclass(frozen=True)
class Length:
    """first · S + second · T + more, of the two sequences among the inputs."""

    first: int = 0
    second: int = 0
    more: int = 0

    def plus(self, other: Length) -> Length:
        return Length(self.first + other.first, self.second + other.second, self.more + other.more)

    @property
    def tame(self) -> bool:
        return self.first + self.second <= 2 and LEAST <= self.more <= MOST


S, T = Length(1), Length(0, 1)


@dataclass(frozen=True)
class Kind:
    form: str
    length: Length | None = None


@dataclass(frozen=True)
class Signature:
    operands: tuple[tuple[str, str], ...]  # (form, length as written)
    result: tuple[str, str]

    @staticmethod
    def of(text: str) -> Signature:
        left, right = text.split("->")
        operands = tuple(_term(part) for part in left.split(",")) if left.strip() else ()
        return Signature(operands, _term(right))

    def accepts(self, kinds: Sequence[Kind]) -> dict[str, Length] | None:
        """The lengths that the letters stand for, when operands of these kinds come first; None if they do not fit."""
        known: dict[str, Length] = {"S": S, "T": T}
        for kind, (form, text) in zip(kinds, self.operands, strict=False):
            if kind.form != form:
                return None
            if text.isalpha():
                known.setdefault(text, kind.length or Length())
            if text and _length(text, known) != kind.length:
                return None
        return known

    def makes(self, kinds: Sequence[Kind]) -> Kind | None:
        """The kind of the result; None if the operands do not fit or the result would be too long or too short."""
        known = self.accepts(kinds)
        if known is None:
            return None
        form, text = self.result
        if not text:
            return Kind(form)
        length = _length(text, known)
        return Kind(form, length) if length.tame else None


def _length(text: str, known: Mapping[str, Length]) -> Length:
    """`2n+k-1`, the letters known."""
    length = Length()
    for sign, number, letter in re.findall(r"([+-]?)(\d*)([A-Za-z]?)", text):
        count = int(number or 1) * (-1 if sign == "-" else 1)
        if letter:
            assert count > 0, text
            for _ in range(count):
                length = length.plus(known[letter])
        elif number:
            length = length.plus(Length(more=count))
    return length


def _term(text: str) -> tuple[str, str]:
    form, _, length = text.strip().partition(" ")
    assert form in FORMS, f"there is no form {form!r}"
    return form, length.strip()
