"""The outline of a tile, so that its area is the number of pairs which the tile sees."""

from __future__ import annotations

from collections.abc import Iterable

from sp.tile import Tile

Point = tuple[float, float]


def outline(tile: Tile) -> list[Point]:
    """Corners (key, query), counted from the first local key and query of the two ranks.

        x . . .     the line runs through the middle of each step of the stairs: row y sees as much left of it
        x x . .     as it has keys, but for an eighth of a pair where the line meets an edge
        x x x .

    Row y sees the keys y + lower … y + upper, which is what lies between y + lower - ½ and y + upper + ½ at the height
    of its middle."""
    rows, columns = tile.q1 - tile.q0, tile.k1 - tile.k0
    corners: list[Point] = [(0.0, 0.0), (columns, 0.0), (columns, rows), (0.0, rows)]
    if tile.upper is not None:
        corners = _cut(corners, -1.0, tile.upper + 0.5)
    if tile.lower is not None:
        corners = _cut(corners, 1.0, 0.5 - tile.lower)
    return [(tile.k0 + key, tile.q0 + query) for key, query in corners]


def polygon_area(corners: Iterable[Point]) -> float:
    """Of a polygon whose corners are given in order."""
    points = list(corners)
    following = points[1:] + points[:1]
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(points, following, strict=True))) / 2


def _cut(corners: list[Point], sign: float, offset: float) -> list[Point]:
    """The part of a convex polygon where `sign * (key - query) + offset >= 0` (Sutherland and Hodgman 1974)."""
    kept: list[Point] = []
    for here, there in zip(corners, corners[1:] + corners[:1], strict=True):
        inside, after = (sign * (point[0] - point[1]) + offset for point in (here, there))
        if inside >= 0:
            kept.append(here)
        if inside * after < 0:
            part = inside / (inside - after)
            kept.append((here[0] + part * (there[0] - here[0]), here[1] + part * (there[1] - here[1])))
    return kept
