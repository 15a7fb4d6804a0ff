"""docs/zoo.md: the one table of what is accepted and what is refused, and why.

`python -m tests.zoo.table` runs every family and writes the table anew; with names of families, only their rows.
tests/zoo/test_zoo.py holds the committed table against fresh runs."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from tests.zoo.families import FAMILIES
from tests.zoo.trial import VARIANTS, Outcome, Variant, try_family, variants

PATH = Path(__file__).parents[2] / "docs" / "zoo.md"
HEADER = """# The zoo

Models of `transformers` and `diffusers` by their real configuration classes, two layers, random weights, taken through
`sp.parallelize` on 2 ranks (striped, 24 and 23 tokens), in float64 throughout. *exact*: outputs and the gradient of
every parameter agree with the plain model; the number bounds the largest relative error. *refused*: by name, for the
reasons numbered below. Labels hold some −100. Padding hides a third of the first row, at its right or left end; packed
rows have position_ids that restart. A gradient that is zero in exact arithmetic (of a key's bias, under softmax) is
round-off, measured against a millionth of all gradients: hence the 1e-11. *scores*: what decides who sees whom in each
kind of attention along the sequence, where padded. Other strategies, 4 ranks and the models' own float32 casts:
`make test-slow`.

Written by `make zoo`; do not edit.
"""
TITLES: Mapping[Variant, str] = {
    "plain": "without labels",
    "labels": "with labels",
    "right": "padded right",
    "left": "padded left",
    "packed": "packed",
}
ABSENT = "–"


@dataclass(frozen=True)
class Cell:
    """bound: of an exact one, a power of ten.  reasons: of a refused one.  scores: what decides who sees whom."""

    bound: str = ""
    reasons: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()

    @staticmethod
    def of(outcome: Outcome) -> Cell:
        """AssertionError for an outcome that no table may hold."""
        assert outcome.verdict in ("exact", "refused"), f"{outcome.verdict}: {outcome.text}"
        if outcome.verdict == "refused":
            return Cell(reasons=outcome.reasons)
        return Cell(f"1e{math.ceil(math.log10(max(outcome.error, 1e-16)))}", scores=outcome.scores)

    @property
    def verdict(self) -> str:
        return "refused" if self.reasons else "exact"


Cells = dict[tuple[str, Variant], Cell]


def render(cells: Cells) -> str:
    """The page."""
    numbers: dict[str, int] = {}
    rows = [
        [name, *(_words(cells.get((name, variant)), numbers) for variant in VARIANTS), _scores(name, cells)]
        for name in _names(cells)
    ]
    table = tabulate(rows, ["family", *TITLES.values(), "scores"], tablefmt="github", disable_numparse=True)
    reasons = "\n".join(f"{number}. {reason}" for reason, number in numbers.items())
    return f"{HEADER}\n{table}\n\n## Reasons\n\n{reasons}\n"


def _names(cells: Cells) -> Iterable[str]:
    return dict.fromkeys(name for name, _ in cells)


def _scores(name: str, cells: Cells) -> str:
    """As they are where padded, or else without a mask."""
    shown = next((cell for variant in ("right", "plain") if (cell := cells.get((name, variant))) and cell.scores), None)
    return "; ".join(shown.scores) if shown else ABSENT


def _words(cell: Cell | None, numbers: dict[str, int]) -> str:
    if cell is None:
        return ABSENT
    if not cell.reasons:
        return f"exact, {cell.bound}"
    return "refused: " + ", ".join(str(numbers.setdefault(reason, len(numbers) + 1)) for reason in cell.reasons)


def parse(page: str) -> Cells:
    """What `render` has written."""
    reasons = dict(re.findall(r"^(\d+)\. (.+)$", page, re.MULTILINE))
    lines = re.findall(r"^\| (?!family)(.+) \|$", page, re.MULTILINE)
    cells: Cells = {}
    for name, *words in ([field.strip() for field in line.split("|")] for line in lines):
        *words, scores = words
        for variant, text in zip(VARIANTS, words, strict=True):
            if text != ABSENT:
                cells[name, variant] = _cell(text, reasons)
        shown = "right" if (name, "right") in cells and not cells[name, "right"].reasons else "plain"
        if scores != ABSENT:
            cells[name, shown] = replace(cells[name, shown], scores=tuple(scores.split("; ")))
    return cells


def _cell(text: str, reasons: Mapping[str, str]) -> Cell:
    if text.startswith("exact, "):
        return Cell(bound=text.removeprefix("exact, "))
    return Cell(reasons=tuple(reasons[number] for number in text.removeprefix("refused: ").split(", ")))


def read() -> Cells:
    """The committed table."""
    return parse(PATH.read_text(encoding="utf-8"))


def cases(names: Iterable[str] = FAMILIES) -> Iterator[tuple[str, Variant]]:
    """Every family with each of its variants."""
    return ((name, variant) for name in names for variant in variants(FAMILIES[name]))


def main(names: list[str]) -> None:
    """Run the families called `names`, or all, and write their rows."""
    found = {
        (name, variant): Cell.of(try_family(FAMILIES[name], variant))
        for name, variant in tqdm(list(cases(names or FAMILIES)))
    }
    old = read() if names else {}
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(render(_in_order({**old, **found})), encoding="utf-8")


def _in_order(cells: Cells) -> Cells:
    """In the order of the families, whichever ran last; families that are gone are dropped."""
    return {case: cells[case] for case in cases() if case in cells}


if __name__ == "__main__":
    main(sys.argv[1:])
