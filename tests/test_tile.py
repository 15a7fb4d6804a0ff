"""Tiles cut in two halves of the work: together what they were, and about as much each."""

from itertools import product

import pytest

from sp.plan import Step, there_and_back
from sp.tile import BLOCK, Tile, halves, trim, within

SHAPES = [Tile(0, 9, 0, 9), Tile(0, 9, 0, 9, upper=0), Tile(2, 9, 1, 4, -1, 2), Tile(3, 4, 0, 9), Tile(0, 9, 3, 4)]


def seen(tiles: tuple[Tile, ...]) -> list[tuple[int, int]]:
    pairs = [(x, y) for tile in tiles for x, y in product(range(12), range(24)) if tile.visible(x, y)]
    return sorted(pairs)


@pytest.mark.parametrize("tile", [tile for shape in SHAPES if (tile := trim(shape))], ids=str)
def test_halves_are_the_whole(tile: Tile) -> None:
    other = Tile(0, 9, 12, 18)
    for tiles in [(tile,), (tile, other), (other, tile)]:
        first, second = halves(tiles)
        assert seen((*first, *second)) == seen(tiles)
        widest = max(t.k1 - t.k0 for t in tiles)
        assert abs(sum(t.area for t in first) - sum(t.area for t in second)) <= 2 * widest


def test_nothing_has_two_empty_halves() -> None:
    assert halves(()) == ((), ())


def test_large_tiles_are_cut_between_blocks() -> None:
    (first,), (second,) = halves((Tile(0, 8 * BLOCK, 0, 8 * BLOCK, upper=0),))
    assert first == Tile(0, 6 * BLOCK, 0, 6 * BLOCK, upper=0)
    assert second == Tile(6 * BLOCK, 8 * BLOCK, 0, 8 * BLOCK, upper=6 * BLOCK)


def test_own_keys_come_first_and_last() -> None:
    own, other = Step(1, (Tile(0, 4, 0, 4),)), Step(0, (Tile(0, 4, 0, 4),))
    assert there_and_back((own,)) == (own,)
    assert there_and_back((own, other)) == (Step(1, (Tile(0, 2, 0, 4),)), other, Step(1, (Tile(2, 4, 0, 4),)))


def test_small_tiles_are_cut_anywhere() -> None:
    assert halves((Tile(0, 2, 0, 2, upper=0),)) == ((Tile(0, 1, 0, 1),), (Tile(1, 2, 0, 2),))
    (first,), (second,) = halves((Tile(0, 2 * BLOCK - 2, 0, 8),))
    assert (first.q1, second.q0) == (BLOCK - 1, BLOCK - 1)
    (first,), _ = halves((Tile(0, 2 * BLOCK, 0, 2 * BLOCK, upper=0),))
    assert first.q1 == BLOCK, "of two blocks on, between them"


def test_equal_tiles_are_not_cut() -> None:
    """Nor rounded to blocks."""
    one, other = Tile(0, 700, 0, 700), Tile(0, 700, 700, 1400)
    assert halves((one, other)) == ((one,), (other,))


SIDES = [None, *range(-4, 5)]
TILES = [
    Tile(2, 2 + rows, 5, 5 + columns, lower, upper)
    for rows, columns, lower, upper in product((1, 3), (1, 2, 4), SIDES, SIDES)
]


def test_a_tile_shows_nothing_outside_of_it() -> None:
    for tile in (Tile(2, 4, 5, 8), Tile(2, 4, 5, 8, upper=0), Tile(2, 4, 5, 8, lower=0)):
        outside = [(x, y) for x, y in product(range(7), range(11)) if not (x in range(2, 4) and y in range(5, 8))]
        assert {tile.visible(x, y) for x, y in outside} == {False}


def test_trimmed_tiles_show_the_same_by_bounds_that_forbid_something() -> None:
    for tile in TILES:
        trimmed = trim(tile)
        assert seen(() if trimmed is None else (trimmed,)) == seen((tile,)), tile
        if trimmed is not None:
            offsets = {y - x for x in range(trimmed.q1 - trimmed.q0) for y in range(trimmed.k1 - trimmed.k0)}
            assert trimmed.lower is None or min(offsets) < trimmed.lower, tile
            assert trimmed.upper is None or max(offsets) > trimmed.upper, tile


def test_a_part_of_a_tile_shows_what_the_tile_shows_there() -> None:
    for tile, (q0, k0) in product(TILES, product((2, 3), (5, 6))):
        if q0 < tile.q1 and k0 < tile.k1:
            part = within(tile, q0, tile.q1, k0, tile.k1)
            assert seen(() if part is None else (part,)) == [(x, y) for x, y in seen((tile,)) if x >= q0 and y >= k0]
