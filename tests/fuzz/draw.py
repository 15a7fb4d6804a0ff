"""Drawing programs and worlds: with hypothesis, which shrinks what fails, or with a random number generator, which
spreads more evenly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from tests.fuzz.kinds import Kind
from tests.fuzz.ops import GROUPS, OPS, READERS
from tests.fuzz.program import INPUTS, Line, Program
from tests.fuzz.trial import World

T = TypeVar("T")

_INPUTS = (
    ("ids",),
    ("ids", "labels"),
    ("ids", "labels"),
    ("ids", "labels", "features"),
    ("ids", "signal"),
    ("ids", "signal", "other"),
    ("ids", "other"),
    ("ids", "labels", "other"),
    ("ids", "others"),
)
_OTHERS = ("ulysses", "allgather", "usp", "double_ring", "usp_zigzag", "striped:2")
_EVEN = 50


class Pick(Protocol):
    def __call__(self, items: Sequence[T], /) -> T:
        """One of the items; the earlier ones are simpler."""
        ...


@st.composite
def trials(draw: st.DrawFn, most: int) -> tuple[Program, World]:
    """Programs of up to `most` lines, beside the embeddings."""

    def pick(items: Sequence[T], /) -> T:
        if len(items) > _EVEN:  # of longer lists hypothesis prefers the first ones
            first = draw(st.sampled_from(range(0, len(items), _EVEN)))
            items = items[first : first + _EVEN]
        return draw(st.sampled_from(items))

    return draw_program(pick, most), draw_world(pick)


def random_trial(seed: int) -> tuple[Program, World]:
    """The program and the world of a number."""
    pick = random.Random(seed).choice
    return draw_program(pick), draw_world(pick)


def draw_world(pick: Pick) -> World:
    more, size = range(10), pick([2, 3, 4, 1, 5, 6])
    strategy, beyond = pick(["striped", "zigzag", "ring"]), (pick(more), pick(more))
    world = World(size, strategy, beyond, pick([2, 3]), pick([None, "dense"]))
    strategy = pick([strategy, strategy, *_OTHERS])
    inner = pick([inner for inner in range(1, size + 1) if size % inner == 0])
    later, pieces = pick([False, False, True]), pick([False, False, True])
    averaged = pick([False, True])
    return replace(world, strategy=strategy, inner=inner, summed_later=later, pieces=pieces, averaged=averaged)


def draw_program(pick: Pick, most: int = 10) -> Program:
    inputs = pick(_INPUTS)
    drawing = Drawing(pick, [INPUTS[name] for name in inputs], [])
    for number, kind in enumerate(list(drawing.kinds)):
        if kind.form == "ids":
            drawing.line(pick(["embed_again", "embed"]), (number,))
    for _ in range(pick(range(1, most + 1))):
        name = drawing.op()
        drawing.line(name, drawing.operands(name))
    outputs = drawing.outputs(len(inputs))
    train, batch, turned = pick([False, True]), pick([2, 2, 3, 1]), pick([False, False, False, True])
    return Program(inputs, tuple(drawing.lines), outputs, pick(range(4)), train, batch, turned)


@dataclass
class Drawing:
    pick: Pick
    kinds: list[Kind]
    lines: list[Line]

    def line(self, name: str, operands: tuple[int, ...]) -> None:
        made = OPS[name].signature.makes([self.kinds[operand] for operand in operands])
        assert made is not None
        self.lines.append(Line(name, operands))
        self.kinds.append(made)

    def op(self) -> str:
        """One that fits: of any table, or, every second time, one that begins with the latest value's form."""
        names = GROUPS[self.pick(range(len(GROUPS)))]
        if self.pick([False, True]):
            names = READERS.get(self.kinds[-1].form, names)
        fitting = {name for name in dict.fromkeys(names) if self.fits(name)}
        return self.pick([name for name in names if name in fitting] or ["embed"])

    def fits(self, name: str) -> bool:
        return bool(self._choices(name, ()))

    def operands(self, name: str) -> tuple[int, ...]:
        """The latest values are likelier."""
        chosen: tuple[int, ...] = ()
        for _ in OPS[name].signature.operands:
            fitting = self._choices(name, chosen)
            chosen = (*chosen, self.pick(fitting[: self.pick([1, 1, 3, len(fitting)])]))
        return chosen

    def _choices(self, name: str, chosen: tuple[int, ...]) -> list[int]:
        """Values that may be the next operand, so that those after it find one, too; the latest first."""
        signature = OPS[name].signature
        found: list[int] = []
        for number in reversed(range(len(self.kinds))):
            tried = (*chosen, number)
            kinds = [self.kinds[one] for one in tried]
            if len(tried) == len(signature.operands):
                fits = signature.makes(kinds) is not None
            else:
                fits = signature.accepts(kinds) is not None and bool(self._choices(name, tried))
            if fits:
                found.append(number)
        return found

    def outputs(self, inputs: int) -> tuple[int, ...]:
        """All values that nobody reads, and sometimes one more, which may be an input."""
        able = list(range(inputs, len(self.kinds)))
        used = {operand for line in self.lines for operand in line.operands}
        extra = {self.pick(range(len(self.kinds)))} if self.pick([False, False, True]) else set[int]()
        return tuple(sorted({at for at in able if at not in used} | extra))
