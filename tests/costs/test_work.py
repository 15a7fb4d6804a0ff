"""Work: closed forms against the plans of every rank of worlds to 9, kernel tiles against their definition."""

from dataclasses import replace

import pytest

from sp.costs import MACHINES, Machine
from sp.costs.work import Work, computed_pairs, layout_work
from sp.layout import LAYOUTS
from sp.mask import CAUSAL, FULL, Band
from sp.plan import make_plan
from sp.tile import Tile
from tests.costs import brute

TILES = [(1, 1), (2, 2), (3, 5), (4, 2), (8, 8), (64, 128)]


MASKS = [CAUSAL, FULL, Band(3, 0), Band(9, 0), Band(40, 0), Band(2, 4), Band(5, None), Band(None, 2), Band(30, 30)]


def machine(tile: tuple[int, int], banded: float = 0.9) -> Machine:
    return replace(MACHINES["a100"], tile=tile, banded=banded)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_few_steps_tell_all(layout: str, mask: Band, tile: tuple[int, int]) -> None:
    chip = machine(tile)
    for local in (2, 4, 6, 10, 16):
        for world in range(1, 10):
            found = layout_work(layout, mask, local, local, world, chip)
            steps = brute.steps_of_all_ranks(layout, mask, local, world, chip)
            waits = sum((brute.busiest(ranks) for ranks in steps), Work())
            critical = found.critical
            if layout == "zigzag" and mask not in (CAUSAL, FULL):
                assert 0.9 * waits.cost <= critical.cost <= waits.cost * (1 + 1e-9)
            else:
                assert critical.cost == pytest.approx(waits.cost)
                assert (critical.queries, critical.keys) == (waits.queries, waits.keys)
            assert found.hops == max(hop for hop, ranks in enumerate(steps) if any(work.pairs for work in ranks))
            assert found.total == sum(work.pairs for ranks in steps for work in ranks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_rank_is_the_busiest_in_every_step(layout: str) -> None:
    """So nothing is gained by ranks that do not wait for each other: it needs as long by itself."""
    for world in range(1, 10):
        steps = brute.steps_of_all_ranks(layout, CAUSAL, 8, world, machine((1, 1)))
        alone = max(sum(ranks[rank].cost for ranks in steps) for rank in range(world))
        assert alone == pytest.approx(layout_work(layout, CAUSAL, 8, 8, world, machine((1, 1))).critical.cost)


@pytest.mark.parametrize("mask", [CAUSAL, FULL, Band(3, 0), Band(2, 4), Band(None, 2), Band(5, None)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernel_tiles_are_computed_whole_where_anything_is_seen(layout: str, mask: Band) -> None:
    plans = [make_plan(layout, mask, 23, 3, rank) for rank in range(3)]
    for tile in (tile for plan in plans for step in plan.steps for tile in step.tiles):
        for rows, columns in TILES:
            assert computed_pairs(tile, rows, columns) == brute.computed_pairs(tile, rows, columns)


@pytest.mark.parametrize("window", [Band(1023, 0), Band(4095, 0), Band(512, 512), Band(16000, 0)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows_of_the_size_that_models_have(layout: str, window: Band) -> None:
    chip = MACHINES["h100"]
    for world, local in ((4, 8192), (8, 2048), (16, 512)):
        found = layout_work(layout, window, local, local, world, chip).critical.cost
        waits = sum(brute.busiest(each).cost for each in brute.steps_of_all_ranks(layout, window, local, world, chip))
        assert found == pytest.approx(waits)


def test_keys_of_another_length() -> None:
    """8 queries and 24 keys on each of 3 ranks, which see all of them."""
    found = layout_work("striped", FULL, 8, 24, 3, machine((1, 1)))
    assert found.critical == Work(3 * 8 * 24, 3 * 8 * 24, 3 * 8, 3 * 24)
    assert (found.hops, found.total) == (2, 24 * 72)


def test_formulas_of_the_papers() -> None:
    """c tokens per rank, P ranks, kernel tiles of B: P - 1/2 blocks, P/2·(1 + B/c), P/2 + B/2c."""
    local, world, size = 4096, 8, 128
    chip = machine((size, size), banded=1.0)
    blocks = {name: layout_work(name, CAUSAL, local, local, world, chip).critical.cost / local**2 for name in LAYOUTS}
    assert blocks["contiguous"] == pytest.approx(world - 0.5 + size / local / 2)
    assert blocks["striped"] == pytest.approx(world / 2 * (1 + size / local), rel=1e-3)
    assert blocks["zigzag"] == pytest.approx(world / 2 + size / local / 2)


def test_a_causal_block_on_torchs_cpu_kernel() -> None:
    """Measured: (n + 1)/2n of a full block, n = c / 512; nothing is skipped up to 512."""
    for tiles in (1, 2, 4, 16):
        whole = 512 * tiles
        computed = computed_pairs(Tile(0, whole, 0, whole, None, 0), *MACHINES["cpu"].tile)
        assert computed / whole**2 == (tiles + 1) / (2 * tiles)
