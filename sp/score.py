"""Scores: what happens to the raw score of a query and a key before the softmax, as text that travels in the graph.

    l0:q l1:k; a = eq.Tensor(l0, l1); b = le.Tensor(j, i); c = bitwise_and.Tensor(a, b) -> visible=c
    l0:table+grad; d = sub.Tensor(i, j); e = clamp.default(d, 0, 31); f = lookup(l0, e) -> bias=f
    t = div.Tensor(s, 50.0); u = tanh.default(t); w = mul.Tensor(u, 50.0) -> score=w
    l0:+grad -> sink=l0

Every value is a tensor in the frame [batch, heads, queries, keys], each dim whole or 1, so that it can be evaluated for
any rectangle of queries and keys: a sequence × sequence tensor never exists.  Known from the start are `i` and `j`, the
positions of the queries and of the keys; `s`, the scaled score; and the leaves `l0`, `l1`, …, tensors that the graph
hands to the attention.  Importing this file imports no torch.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

POSITIONS = ("i", "j")
SCORE = "s"
LOOKUP = "lookup"
# Every finite value that models add to hide a position (finfo.min of the 16-bit formats and wider) is below this.
HIDDEN_BELOW = -60000
_ROLES = ("visible", "bias", "score", "sink")
_FORMS = ("", "q", "k", "qk", "table")
_ALPHABET = "abcdefghmnopqrtuvwxyz"  # without i, j, l and s, which have a meaning


def letters(number: int) -> str:
    """The name of a line by its number: a, b, …, z, a1, b1, …"""
    more, place = divmod(number, len(_ALPHABET))
    return _ALPHABET[place] + (str(more) if more else "")


@dataclass(frozen=True)
class Name:
    """A value of an earlier line, or one that is known from the start."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Dtype:
    """A torch dtype by its name: 'float32'."""

    text: str

    def __str__(self) -> str:
        return repr(self.text)


Argument = Name | Dtype | int | float | bool | None


@dataclass(frozen=True)
class Leaf:
    """How a tensor that is handed in lies in the frame [batch, heads, queries, keys].

    form: which of the global dims it has: queries "q", keys "k", both "qk", or none "" (it may then have no dims at
    all, as a number in a tensor has none); each other dim is whole or 1.  "table" lies not in the frame: rows that
    `lookup(table, index)` picks by an index of frame [·, 1, q, k], giving each head its column: [rows, heads].
    trains: whether it gets a gradient."""

    form: str = ""
    trains: bool = False

    def __str__(self) -> str:
        return self.form + ("+grad" if self.trains else "")


@dataclass(frozen=True)
class Line:
    """`name = op(arguments)`.  op: an overload of aten that works element by element, as `eq.Tensor`, or `lookup`."""

    name: str
    op: str
    arguments: tuple[Argument, ...]
    options: tuple[tuple[str, Argument], ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        values = (*self.arguments, *(value for _, value in self.options))
        return tuple(value.text for value in values if isinstance(value, Name))

    def renamed(self, names: Mapping[str, str]) -> Line:
        """The same line reading other names."""

        def rename(value: Argument) -> Argument:
            return Name(names.get(value.text, value.text)) if isinstance(value, Name) else value

        options = tuple((key, rename(value)) for key, value in self.options)
        return Line(self.name, self.op, tuple(map(rename, self.arguments)), options)

    def __str__(self) -> str:
        words = [_word(value) for value in self.arguments]
        words += [f"{key}={_word(value)}" for key, value in self.options]
        return f"{self.name} = {self.op}({', '.join(words)})"


@dataclass(frozen=True)
class Score:
    """The score that softmax sees, in this order, each step only where it is named:

    score: a function of the scaled score `s`, in its place.  bias: added to it.  visible: where false, the score is
    -inf.  sink: the score of one more key, whose value is zero (frame [·, heads, queries, 1]).
    """

    leaves: tuple[Leaf, ...] = ()
    lines: tuple[Line, ...] = ()
    visible: str | None = None
    bias: str | None = None
    score: str | None = None
    sink: str | None = None

    def __bool__(self) -> bool:
        """Whether it changes any score."""
        return any(self.roles)

    @property
    def roles(self) -> tuple[str | None, str | None, str | None, str | None]:
        """The names of visible, bias, score and sink."""
        return self.visible, self.bias, self.score, self.sink

    @property
    def trains(self) -> bool:
        return any(leaf.trains for leaf in self.leaves)

    def reach(self, names: Sequence[str]) -> frozenset[str]:
        """All that the values called `names` are computed from, themselves among them."""
        reached = set(names)
        for line in reversed(self.lines):
            if line.name in reached:
                reached.update(line.reads)
        return frozenset(reached)

    def only(self, reached: frozenset[str], leaves: Sequence[Leaf], places: Sequence[int]) -> Score:
        """The same with the `reached` lines alone; of all leaves, those at `places` are left, and counted anew."""
        names = {f"l{old}": f"l{new}" for new, old in enumerate(places)}
        lines = tuple(line.renamed(names) for line in self.lines if line.name in reached)
        visible, bias, score, sink = (name and names.get(name, name) for name in self.roles)
        return Score(tuple(leaves), lines, visible, bias, score, sink)

    def __str__(self) -> str:
        if not self:
            return ""
        leaves = " ".join(f"l{index}:{leaf}" for index, leaf in enumerate(self.leaves))
        roles = ", ".join(f"{role}={name}" for role, name in zip(_ROLES, self.roles, strict=True) if name)
        return "; ".join([*([leaves] if leaves else []), *map(str, self.lines)]) + f" -> {roles}"

    @staticmethod
    def parse(text: str) -> Score:
        """The inverse of `str`; "" leaves every score as it is."""
        return _parse(text)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Score:
    if not text:
        return Score()
    body, _, roles = text.rpartition(" -> ")
    parts = body.split("; ") if body else []
    leaves: tuple[Leaf, ...] = ()
    if parts and " = " not in parts[0]:
        leaves = tuple(_leaf(word) for word in parts.pop(0).split(" "))
    named = dict(role.split("=") for role in roles.split(", "))
    assert named.keys() <= set(_ROLES), f"not a score: {text!r}"
    return Score(leaves, tuple(map(_line, parts)), **named)


def _leaf(word: str) -> Leaf:
    form, plus, _ = word.partition(":")[2].partition("+")
    assert form in _FORMS, f"not a leaf: {word!r}"
    return Leaf(form, bool(plus))


def _line(text: str) -> Line:
    name, _, call = text.partition(" = ")
    parsed = ast.parse(call, mode="eval").body
    assert isinstance(parsed, ast.Call), f"not a line of a score: {text!r}"
    arguments = tuple(_argument(value) for value in parsed.args)
    options = tuple((option.arg or "", _argument(option.value)) for option in parsed.keywords)
    return Line(name, ast.unparse(parsed.func), arguments, options)


def _argument(value: ast.expr) -> Argument:
    if isinstance(value, ast.UnaryOp):
        inner = _argument(value.operand)
        assert isinstance(inner, (int, float)), "only numbers have a sign"
        return -inner
    if isinstance(value, ast.Name):
        return {"inf": math.inf, "nan": math.nan}.get(value.id, Name(value.id))
    assert isinstance(value, ast.Constant), f"not an argument of a score: {ast.unparse(value)}"
    return Dtype(value.value) if isinstance(value.value, str) else value.value  # pyright: ignore[reportReturnType]


def _word(value: Argument) -> str:
    return str(value) if isinstance(value, (Name, Dtype)) else repr(value)
