"""The matrix of one attention, queries downward and keys to the right, each tile in the colour of its step."""

from __future__ import annotations

from collections.abc import Iterator

from sp.show.pictures.colours import greys, is_dark, ramp
from sp.show.pictures.elements import Element, element, label, moved, rectangle, words
from sp.show.pictures.miniature import Miniature
from sp.show.pictures.outline import outline
from sp.show.pictures.tiling import Block, Tiling

SIDE = 224.0
STRIP = 15.0
_NUMBERED, _DIGIT = 20.0, 12.0  # pixels that a block needs to hold the number of its step, a token that of its rank


def draw_tiles(tiling: Tiling) -> Element:
    """Ranks by ranks.  Each block is a group `data-step`, `data-rank`, with a title that says what it is."""
    cell = SIDE / len(tiling.ranks)
    colours = ramp(len(tiling.steps))
    places = {rank: place for place, rank in enumerate(tiling.ranks)}
    blocks = [
        moved(cell * places[block.source], cell * places[block.rank], [_block(block, cell, colours)])
        for block in tiling.blocks
    ]
    return element("g", {"class": "matrix"}, rectangle(0, 0, SIDE, SIDE, "empty"), *blocks)


def _block(block: Block, cell: float, colours: list[str]) -> Element:
    colour = colours[block.group]
    shapes = [
        element("polygon", {"points": _points(corners, block, cell), "class": "tile", "fill": colour})
        for corners in map(outline, block.tiles)
    ]
    attributes = {"class": "block", "data-step": block.group, "data-rank": block.rank, "data-pairs": block.area}
    return element("g", attributes, words("title", describe(block)), *shapes, *_number(block, cell, colour))


def _points(corners: list[tuple[float, float]], block: Block, cell: float) -> str:
    scaled = ((x * cell / max(block.keys, 1), y * cell / max(block.queries, 1)) for x, y in corners)
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in scaled)


def _number(block: Block, cell: float, colour: str) -> Iterator[Element]:
    if block.tiles and cell >= _NUMBERED:
        yield label(
            cell * 0.2, cell * 0.72 + 3, str(block.step), "on-dark" if is_dark(colour) else "on-light", "middle"
        )


def describe(block: Block) -> str:
    """What a block is, as a sentence."""
    kinds = " + ".join(dict.fromkeys(tile.kind for tile in block.tiles))
    what = f"{block.area:,} pairs, {kinds}" if block.tiles else "nothing to compute"
    return f"step {block.step}: rank {block.rank} against the keys of rank {block.source}: {what}"


def draw_cells(miniature: Miniature, steps: int) -> Element:
    """Every pair of a short sequence, in its own order; one path for each rank and step."""
    cell, colours = SIDE / miniature.length, ramp(steps)
    paths = [
        element(
            "path",
            {"d": _squares(pairs, cell), "fill": colours[step], "class": "block", "data-step": step, "data-rank": rank},
            words("title", f"step {step}: rank {rank}, {len(pairs)} pairs"),
        )
        for rank, step, pairs in miniature.cells
        if pairs
    ]
    return element("g", {"class": "matrix"}, rectangle(0, 0, SIDE, SIDE, "empty"), *paths)


def _squares(pairs: tuple[tuple[int, int], ...], cell: float) -> str:
    """Neighbouring keys of one query are one rectangle."""
    runs: list[list[int]] = []
    for query, key in pairs:
        if runs and runs[-1][0] == query and runs[-1][2] == key:
            runs[-1][2] = key + 1
        else:
            runs.append([query, key, key + 1])
    high = f"{cell - 0.5:.2f}"
    return "".join(
        f"M{first * cell:.1f} {query * cell:.1f}h{(stop - first) * cell - 0.5:.2f}v{high}H{first * cell:.1f}z"
        for query, first, stop in runs
    )


def draw_owners(owners: tuple[int, ...]) -> Element:
    """A strip of tokens, each with the number of its rank, and the darker the higher that is."""
    cell, shades = SIDE / len(owners), greys(max(owners) + 1)
    tokens: list[Element] = []
    for place, rank in enumerate(owners):
        tokens.append(rectangle(place * cell, 0, cell - 0.8, STRIP, "owner", fill=shades[rank]))
        if cell >= _DIGIT:
            kind = "on-dark" if is_dark(shades[rank]) else "on-light"
            tokens.append(label((place + 0.5) * cell - 0.4, STRIP - 4, str(rank), kind, "middle"))
    return element("g", {"class": "owners"}, *tokens)
