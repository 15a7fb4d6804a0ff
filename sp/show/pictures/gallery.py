"""The pictures of one report: what `Report.to_html`, `to_svg` and `figure` call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sp.costs import Estimates
from sp.errors import InputError
from sp.program import Program
from sp.show.facts import Attention, attentions
from sp.show.naming import Naming
from sp.show.pictures.amounts import find_amounts
from sp.show.pictures.draw_panel import draw_comparison
from sp.show.pictures.elements import alone
from sp.show.pictures.figures import draw_figure
from sp.show.pictures.page import Page, framed, render
from sp.show.pictures.panels import Comparison, compare
from sp.show.pictures.rows import captured_rows, rewritten_rows

Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Gallery:
    """program, world, lengths, captured: as in `Report`."""

    program: Program
    world: int
    lengths: Sequence[int]
    captured: Program

    def page(self, facts: Facts, estimates: Estimates | None, path: str | Path | None = None) -> str:
        """The page of HTML, and written to `path` where there is one.  facts: what stands at its top."""
        naming = Naming(self.program)
        text = render(
            Page(
                f"{self.program.strategy.name} on {self.world:,} ranks",
                facts,
                self._comparisons,
                self._attentions,
                find_amounts(self.captured, self.program, self.lengths, self.world),
                (captured_rows(self.captured, self.program), rewritten_rows(self.program)),
                [(note.stage, naming.text(note.text)) for note in self.program.history],
                estimates,
            )
        )
        return _saved(text, path)

    def framed(self, facts: Facts, estimates: Estimates | None) -> str:
        """The page in a frame, for notebooks."""
        return framed(self.page(facts, estimates))

    def svg(self, name: str, number: int, path: str | Path | None = None) -> str:
        """One picture of the attentions of one kind."""
        return _saved(alone(draw_comparison(self._comparison(number), name)), path)

    def figure(self, name: str, number: int) -> Any:
        """The same as a matplotlib figure."""
        return draw_figure(self._comparison(number), name)

    def _comparison(self, number: int) -> Comparison:
        found = len(self._comparisons)
        if not found:
            raise InputError("the model has no attention along the sequence, and so no plan to draw")
        if not 0 <= number < found:
            raise InputError(f"there is no attention {number}", needed=f"a number from 0 to {found - 1}")
        return self._comparisons[number]

    @cached_property
    def _attentions(self) -> list[Attention]:
        return attentions(self.program, self.lengths, self.world)

    @cached_property
    def _comparisons(self) -> list[Comparison]:
        return compare(self._attentions, self.program.strategy, self.world)


def _saved(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, "utf-8")
    return text
