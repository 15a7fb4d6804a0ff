"""Rectangles from blocks: pictures first, then any letters under any band, pair by pair."""

from __future__ import annotations

import random

import pytest
import torch

from sp.plan import Tile, trim
from sp.runtime.scores.blocks import Blocks, cut_blocks

SIZE = 4  # rows and columns of a block


def blocks_of(picture: str, size: int = SIZE) -> Blocks:
    lines = picture.split()
    edges = [[*range(0, size * count + 1, size)] for count in (len(lines), len(lines[0]))]
    return Blocks(*edges, [line.encode() for line in lines])


def pieces_of(picture: str, upper: int | None = None, lower: int | None = None, size: int = SIZE) -> list[str]:
    blocks = blocks_of(picture, size)
    tile = trim(Tile(0, blocks.rows[-1], 0, blocks.columns[-1], lower, upper))
    assert tile is not None
    return sorted(f"{'mixed ' if mixed else ''}{piece}" for piece, mixed in cut_blocks(tile, blocks))


@pytest.mark.parametrize("letter", "om")
def test_blocks_of_one_kind_are_one_tile(letter: str) -> None:
    word = "mixed " if letter == "m" else ""
    assert pieces_of(f"{letter * 3} " * 3) == [f"{word}full q[0:12] k[0:12]"]
    assert pieces_of(f"{letter * 3} " * 3, upper=0) == [f"{word}causal q[0:12] k[0:12]"]
    assert pieces_of(f"{letter * 3} " * 3, upper=1, lower=-2) == [f"{word}band q[0:12] k[0:12]"]


def test_a_document_under_a_causal_band_is_one_piece() -> None:
    """What lies above the diagonal belongs to whoever needs it, whatever the score does there."""
    picture = """
        ohhhh
        oohhh
        hhohh
        hhooh
        hhooo"""
    assert pieces_of(picture, upper=0) == ["causal q[0:8] k[0:8]", "causal q[8:20] k[8:20]"]
    assert len(pieces_of(picture)) > 2


def test_borders_of_documents_are_mixed_pieces() -> None:
    picture = """
        omh
        mmm
        hmo"""
    assert pieces_of(picture) == [
        *("full q[0:4] k[0:4]", "full q[8:12] k[8:12]"),
        *("mixed full q[0:4] k[4:8]", "mixed full q[4:8] k[0:12]", "mixed full q[8:12] k[4:8]"),
    ]


def test_equal_rows_of_mixed_blocks_are_one_piece() -> None:
    assert pieces_of("oomh oomh oomh") == ["full q[0:12] k[0:8]", "mixed full q[0:12] k[8:12]"]


def test_mixed_pieces_stay_small() -> None:
    """At most 2,048 keys and 256 · 2,048 pairs, under any band; open ones as large as they come."""
    found = list(cut_blocks(Tile(0, 5120, 0, 5120, None, 0), blocks_of("mmmmm " * 5, 1024)))
    sides = [(piece.q1 - piece.q0, piece.k1 - piece.k0) for piece, _ in found]
    assert max(columns for _, columns in sides) <= 2048
    assert max(rows * columns for rows, columns in sides) <= 256 * 2048
    assert len(found) == 20 + 12 + 4  # every 256 rows, in the first, second and third 2,048 columns
    assert sum(piece.area for piece, _ in found) == 5120 * 5121 // 2


def test_hidden_blocks_are_left_out() -> None:
    assert pieces_of("hh hh") == []
    assert pieces_of("hhh oom") == ["full q[4:8] k[0:8]", "mixed full q[4:8] k[8:12]"]


@pytest.mark.parametrize("seed", range(20))
def test_any_letters_under_any_band(seed: int) -> None:
    choice = random.Random(seed)
    for _ in range(20):
        rows, columns = choice.randint(1, 5), choice.randint(1, 5)
        letters = choice.choice(("om", "oh", "ooomh", "omh", "mmmh"))
        picture = " ".join("".join(choice.choice(letters) for _ in range(columns)) for _ in range(rows))
        q0, k0 = choice.randrange(rows * SIZE), choice.randrange(columns * SIZE)
        q1, k1 = choice.randint(q0 + 1, rows * SIZE), choice.randint(k0 + 1, columns * SIZE)
        bounds = [choice.choice((None, choice.randint(-12, 12))) for _ in range(2)]
        tile = trim(Tile(q0, q1, k0, k1, *bounds))
        if tile is not None:
            check_pieces(tile, picture)


def check_pieces(tile: Tile, picture: str) -> None:
    """Each pair that the tile sees is in one piece of its letter's kind, or in none where the letter is h."""
    lines = picture.split()
    blocks = blocks_of(picture)
    found = torch.full((blocks.rows[-1], blocks.columns[-1]), ord("h"))
    for piece, mixed in cut_blocks(tile, blocks):
        assert trim(piece) == piece
        for x in range(piece.q0, piece.q1):
            for y in range(piece.k0, piece.k1):
                if piece.visible(x, y):
                    assert found[x, y] == ord("h"), f"the pair {x}, {y} is in two pieces"
                    found[x, y] = ord("m" if mixed else "o")
    for x in range(blocks.rows[-1]):
        for y in range(blocks.columns[-1]):
            letter = lines[x // SIZE][y // SIZE] if tile.visible(x, y) else "h"
            assert chr(int(found[x, y])) == letter, f"{x}, {y} of {tile} in {picture}"
