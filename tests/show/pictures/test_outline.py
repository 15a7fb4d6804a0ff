"""Outlines of tiles have the area that the tile counts."""

import pytest

from sp.mask import CAUSAL, FULL, Band
from sp.plan import make_plan
from sp.show.pictures.outline import outline, polygon_area
from sp.tile import Tile

CORNERS = 2 * 2 * 0.125  # an eighth of a pair where each side of a band meets an edge


@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
@pytest.mark.parametrize("mask", [CAUSAL, FULL, Band(7, 0), Band(5, 3)], ids=str)
@pytest.mark.parametrize(("length", "world"), [(64, 4), (67, 3), (40, 5)])
def test_areas_are_those_of_the_plan(layout: str, mask: Band, length: int, world: int) -> None:
    for rank in range(world):
        for step in make_plan(layout, mask, length, world, rank).steps:
            for tile in step.tiles:
                assert abs(polygon_area(outline(tile)) - tile.area) <= CORNERS


def test_full_and_causal_tiles_are_rectangle_and_triangle() -> None:
    assert outline(Tile(0, 2, 4, 8)) == [(4, 0), (8, 0), (8, 2), (4, 2)]
    assert outline(Tile(0, 4, 0, 4, upper=0)) == [(0, 0), (0.5, 0), (4, 3.5), (4, 4), (0, 4)]


def test_corners_stay_in_their_tile() -> None:
    for key, query in outline(Tile(2, 9, 3, 12, lower=-2, upper=3)):
        assert 3 <= key <= 12
        assert 2 <= query <= 9
