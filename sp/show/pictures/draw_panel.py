"""Strategies as pictures: who holds which token, the tiles of the matrix, the work of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sp.errors import InputError
from sp.show.pictures.draw_tiles import SIDE, STRIP, draw_cells, draw_owners, draw_tiles
from sp.show.pictures.draw_work import LEFT, bars_height, draw_work
from sp.show.pictures.elements import Element, element, label, moved, picture
from sp.show.pictures.panels import Comparison, Panel

# name of a picture → its parts, from top to bottom
PICTURES = {
    "plan": ("owners", "tiles", "work"),
    "tiles": ("tiles",),
    "tokens": ("owners", "tokens"),
    "work": ("work",),
}
WIDTH = SIDE + LEFT
_GAP, _HEADING = 30.0, 42.0
_NAMED = 20.0  # pixels that a rank needs for its name


def draw_comparison(comparison: Comparison, name: str) -> Element:
    """All panels side by side.  name: in `PICTURES`; InputError lists them."""
    if name not in PICTURES:
        raise InputError(f"there is no picture {name!r}", needed=f"one of: {', '.join(PICTURES)}")
    longest = longest_of(comparison)
    columns = [_column(panel, longest, PICTURES[name]) for panel in comparison.panels]
    high = max(height for _, height in columns)
    placed = [moved(_GAP + place * (WIDTH + _GAP), 18, [column]) for place, (column, _) in enumerate(columns)]
    lines = list(_footer(comparison, name))
    footer = [label(_GAP, high + 34 + 14 * row, line, "small") for row, line in enumerate(lines)]
    title = f"{comparison.title}, on {comparison.world} ranks"
    text = "; ".join(map(sentence, comparison.panels))
    high += 30 + 14 * len(lines)
    return picture(len(columns) * (WIDTH + _GAP) + _GAP, high, title, text, [*placed, *footer])


def draw_part(panel: Panel, longest: float, part: str) -> Element:
    """One part of one panel as a picture of its own."""
    drawn, high = _draw(panel, longest, part)
    return picture(WIDTH + 4, high, f"{panel.name}: {part}", sentence(panel), [drawn])


def longest_of(comparison: Comparison) -> float:
    """What fills the width of all bars."""
    return max(panel.timeline.length for panel in comparison.panels)


def verdict(panel: Panel) -> str:
    """How long it takes, and how much of that is waiting."""
    return f"takes {panel.timeline.length:.2f} × an even share, waits {100 * panel.timeline.waiting:.1f} % of it"


def sentence(panel: Panel) -> str:
    """For those who cannot see the picture."""
    return f"{panel.name} {verdict(panel)}; its busiest rank has {panel.timeline.most:.2f} of an even share"


def _column(panel: Panel, longest: float, parts: Sequence[str]) -> tuple[Element, float]:
    """Heading and parts of a panel below each other, and how high they are."""
    own = " · this model" if panel.own else ""
    placed = [label(0, 13, f"{panel.name}{own}", "name"), label(0, 30, verdict(panel), "small")]
    top = _HEADING
    for part in parts:
        if part in ("owners", "tokens") and panel.miniature is None:
            continue
        drawn, height = _draw(panel, longest, part)
        placed.append(moved(0, top, [drawn]))
        top += height
    return element("g", {"class": "panel", "data-strategy": panel.name}, *placed), top


def _draw(panel: Panel, longest: float, part: str) -> tuple[Element, float]:
    if part == "work":
        return moved(0, 8, [draw_work(panel.timeline, panel.name, WIDTH, longest)]), bars_height(panel.timeline) + 8
    if part == "tiles":
        return moved(LEFT, 2, [draw_tiles(panel.tiling), *_sides(panel.unit, panel.tiling.ranks)]), SIDE + 26
    assert panel.miniature, f"there is nothing small to draw {part} of"
    if part == "tokens":
        return moved(
            LEFT, 2, [draw_cells(panel.miniature, len(panel.tiling.steps)), *_sides(panel.unit, ())]
        ), SIDE + 26
    title = label(0, 10, f"which {panel.unit} holds which token", "small")
    return moved(LEFT, 0, [title, moved(0, 15, [draw_owners(panel.miniature.owners)])]), STRIP + 26


def _sides(unit: str, ranks: Sequence[int]) -> Iterator[Element]:
    """The names of rows and columns."""
    cell = SIDE / max(len(ranks), 1)
    if not ranks or cell < _NAMED:
        yield label(-6, 11, "queries", "small", "end")
        yield label(0, SIDE + 13, "keys →", "small")
        return
    for place, rank in enumerate(ranks):
        middle = (place + 0.5) * cell
        yield label(-6, middle + 3.5, f"{unit} {rank}", "small", "end")
        yield label(middle, SIDE + 13, str(rank), "small", "middle")


def _footer(comparison: Comparison, name: str) -> Iterator[str]:
    if name != "work":
        yield "Rows: queries of a rank.  Columns: the rank whose keys they meet.  Colour and number: in which step."
    if name in ("plan", "work"):
        yield "Bars: filled while a rank computes, dashed while it waits for the slowest."
    yield from comparison.notes
