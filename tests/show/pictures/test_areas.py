"""The closed form agrees with the plans, exhaustively at small sizes."""

import pytest

from sp.mask import CAUSAL, FULL, Band
from sp.plan import make_plan
from sp.show.pictures.areas import rank_areas

MASKS = [CAUSAL, FULL, Band(4, 0), Band(3, 2), Band(None, 5), Band(2, None), Band(-2, 5), Band(40, 0)]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag", "striped:2", "zigzag/2", "striped/2"])
def test_areas_are_those_of_the_plans(layout: str, mask: Band) -> None:
    for world in (2, 4, 6):
        for queries in (world, 13, 24):
            for keys in (queries, 17):
                plans = [make_plan(layout, mask, queries, world, rank, keys) for rank in range(world)]
                assert rank_areas(layout, mask, queries, keys, world) == tuple(plan.area for plan in plans)


def test_no_rank_has_less_than_nothing() -> None:
    assert rank_areas("contiguous", Band(-5, 2), 16, 16, 2) == (0, 0)


def test_worlds_of_thousands() -> None:
    areas = rank_areas("contiguous", CAUSAL, 1 << 20, 1 << 20, 4096)
    assert sum(areas) == (1 << 20) * ((1 << 20) + 1) // 2
    assert areas[-1] > 1.99 * sum(areas) / 4096
