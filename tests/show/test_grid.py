"""Plan grids, against golden files and against the plans."""

import re
from collections.abc import Callable

import pytest

from sp.layout import LAYOUTS
from sp.mask import CAUSAL, FULL, Band
from sp.plan import Tile
from sp.show.grid import plan_grid, short_tile

Golden = Callable[[str, str], None]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_grid_prints_as_before(layout: str, golden: Golden) -> None:
    even, uneven = plan_grid(layout, CAUSAL, 64, 4), plan_grid(layout, CAUSAL, 67, 4)
    window = plan_grid(layout, Band(5, 0), 64, 4)
    golden(f"show/grid/{layout}", "\n\n".join([even, uneven, window]))


def test_large_world_is_cut(golden: Golden) -> None:
    golden("show/grid/large_world", plan_grid("zigzag", CAUSAL, 2**20, 100))


def test_of_many_tiles_the_largest_is_shown() -> None:
    """Stripes of 64 tokens, 16 on each of 2 ranks."""
    _, first, second = plan_grid("striped:64", CAUSAL, 2048, 2).splitlines()
    assert re.split(r" {2,}", first)[:3] == ["rank 0", "causal", "full q[512:] k[:512] + 14 more"]
    assert re.split(r" {2,}", second)[:3] == ["rank 1", "causal", "full q[512:] k[:576] + 15 more"]


def test_design_page_grid() -> None:
    """The rows that the design promises."""
    first, second = (re.split(r" {2,}", line) for line in plan_grid("zigzag", CAUSAL, 64, 4).splitlines()[1:3])
    assert first == ["rank 0", "causal", *["full q[8:]"] * 3, "25.0 %"]
    assert second == ["rank 1", "causal", "full k[:8]", *["full q[8:]"] * 2, "25.0 %"]


def test_world_of_one_and_a_mask_that_hides_nothing() -> None:
    header, row = plan_grid("contiguous", FULL, 8, 1).splitlines()
    assert header.split() == ["contiguous", "full", "world=1", "local=8", "step", "0", "work"]
    assert row.split() == ["rank", "0", "full", "100.0", "%"]


@pytest.mark.parametrize(
    ("tile", "text"),
    [
        (Tile(0, 8, 0, 8), "full"),
        (Tile(0, 8, 0, 8, None, 0), "causal"),
        (Tile(4, 8, 0, 8), "full q[4:]"),
        (Tile(0, 8, 0, 3), "full k[:3]"),
        (Tile(2, 6, 1, 8, None, 0), "causal q[2:6] k[1:]"),
        (Tile(0, 8, 0, 8, -3, 0), "band[-3:0]"),
        (Tile(0, 8, 0, 8, -3, None), "band[-3:]"),
        (Tile(0, 8, 4, 8, None, 2), "band[:2] k[4:]"),
    ],
)
def test_short_tile(tile: Tile, text: str) -> None:
    assert short_tile(tile, 8, 8) == text
