"""The lines beside the rows of a graph: from each value to those that are computed from it."""

from __future__ import annotations

from collections.abc import Iterator

from sp.show.pictures.elements import Element, element, picture
from sp.show.pictures.lanes import give_lanes
from sp.show.pictures.rows import Listing

ROW = 24.0  # the height of a row; the page's style sheet has it too
_LANE, _LEFT = 9.0, 8.0
_SILENT = ("open", "close")


def draw_edges(listing: Listing) -> Element:
    """As high as the rows.  Each line has the numbers of the rows at its ends, `data-from` and `data-to`."""
    rows = listing.rows
    lanes = give_lanes([row.reads for row in rows], [row.kind in _SILENT for row in rows])
    x = [_LEFT + _LANE * lane for lane in lanes]
    y = [ROW * (number + 0.5) for number in range(len(rows))]
    lines = [_line(x, y, source, number) for number, row in enumerate(rows) for source in row.reads]
    text = f"{len(rows)} rows, {len(lines)} lines from values to those that read them"
    return picture(
        width_of(lanes), ROW * len(rows), f"graph after {listing.stage}", text, [*lines, *_dots(listing, x, y)]
    )


def width_of(lanes: list[int]) -> float:
    return 2 * _LEFT + _LANE * max(lanes, default=0)


def _line(x: list[float], y: list[float], source: int, reader: int) -> Element:
    """Down the lane of its source, and over to the reader on the last half row."""
    x0, y0, x1, y1 = x[source], y[source], x[reader], y[reader]
    bend = y1 - ROW * 0.9
    turn = f"V{bend:.1f}C{x0:.1f} {y1 - 6:.1f} {x1:.1f} {bend + 6:.1f} {x1:.1f} {y1:.1f}" if x0 != x1 else f"V{y1:.1f}"
    return element("path", {"d": f"M{x0:.1f} {y0:.1f}{turn}", "class": "edge", "data-from": source, "data-to": reader})


def _dots(listing: Listing, x: list[float], y: list[float]) -> Iterator[Element]:
    for number, row in enumerate(listing.rows):
        if row.kind not in _SILENT:
            radius = 4.5 if row.kind in ("attention", "inserted") else 3.0
            yield element("circle", {"cx": x[number], "cy": y[number], "r": radius, "class": f"dot {row.kind}"})
