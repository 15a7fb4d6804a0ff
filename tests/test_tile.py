"""Tiles cut in two halves of the work: together what they were, and about as much each."""

from itertools import product

import pytest

from sp.plan import Step, there_and_back
from sp.tile import BLOCK, Tile, halves, trim

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
