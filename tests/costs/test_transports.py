"""Transports: seconds against a ring played hop by hop, bytes against those that the report counts from plans."""

from dataclasses import replace
from itertools import product

import pytest
import sympy

from sp.costs import MACHINES, AttentionShape, Machine, Phase
from sp.costs.phase import Job
from sp.costs.transports import TRANSPORTS, allgather, alltoall, double_ring, ring
from sp.costs.work import layout_work
from sp.layout import LAYOUTS
from sp.mask import CAUSAL, FULL, Band
from sp.program import AttentionSite
from sp.score import Score
from sp.show.costs import attention_costs
from sp.strategy import STRATEGIES
from tests.costs import brute

SHAPE = AttentionShape(heads=8, kv_heads=2, head_width=16, value_width=16, item_bytes=2)
FEW = replace(SHAPE, kv_heads=8)
# Transfers that hide behind all steps, behind the long ones only, and behind none.
LINKS = (1e15, 2e10, 1e8)


def job(world: int, local: int = 64, link: float = 1e12, tile: int = 8) -> Job:
    chip = replace(MACHINES["a100"], link_bandwidth=link, link_latency=1e-9, ranks_per_node=64, tile=(tile, tile))
    return Job(SHAPE, chip, local, world, local, world)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    ("layout", "mask"),
    [
        *product(LAYOUTS, (CAUSAL, FULL)),
        *product(("contiguous", "striped"), (Band(100, 0), Band(20, 9))),
    ],
)
def test_a_ring_hop_by_hop(layout: str, mask: Band, link: float) -> None:
    for world in (1, 2, 3, 4, 7):
        task = job(world, link=link)
        ranks = brute.steps_of_all_ranks(layout, mask, task.local, world, task.machine)
        steps = [brute.busiest(each) for each in ranks]
        found = ring(task, layout, mask)
        for phase, backward in ((found.forward, False), (found.backward, True)):
            seconds, sent = brute.ring_clock(task, steps, backward)
            assert phase.seconds == pytest.approx(seconds)
            assert phase.sent == sent


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_gain_nothing_by_not_waiting_for_all(layout: str, link: float) -> None:
    """They wait for their neighbours only, but one rank is the busiest in every step."""
    for world in (1, 2, 3, 4, 7):
        task = job(world, link=link)
        ranks = brute.steps_of_all_ranks(layout, CAUSAL, task.local, world, task.machine)
        assert ring(task, layout, CAUSAL).forward.seconds == pytest.approx(brute.free_ring_clock(task, ranks))


def test_the_hops_of_that_test_are_sometimes_hidden() -> None:
    """First and last included: only those between are hidden, all are, and none is."""
    waits = [ring(job(4, link=link), "striped", CAUSAL).forward.exposed for link in LINKS]
    assert waits[0] == 0
    assert 0 < waits[1] < waits[2]


@pytest.mark.parametrize("mask", [CAUSAL, FULL, Band(13, 0), Band(2, 2)], ids=str)
@pytest.mark.parametrize("shape", [SHAPE, FEW], ids=["grouped", "plain"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_report_counts_the_same_bytes(name: str, shape: AttentionShape, mask: Band) -> None:
    """Of the rank that sends most; 8 heads are dealt to 4 ranks.  Plain heads send queries around in backward."""
    symbol, world, local = sympy.Symbol("S"), 8, 12
    strategy = STRATEGIES[name].on((2, 4)) if STRATEGIES[name].axes else STRATEGIES[name]
    site = AttentionSite(
        "attention", "", mask, symbol, symbol, shape.heads, shape.kv_heads, shape.head_width, shape.value_width,
        item_bytes=2, kernel="dense", why="", score=Score(), words=(), transport=strategy.transport,
    )  # fmt: skip
    counted = attention_costs(site, strategy, local * world, world)
    inner = strategy.shape[-1] if strategy.shape else world
    task = Job(shape, MACHINES["a100"], local, world, local, inner)
    found = TRANSPORTS[strategy.transport](task, strategy.layout, mask)
    assert max(counted.forward) == found.forward.sent
    assert max(counted.backward) == found.backward.sent


def test_a_gather_hides_behind_the_own_keys_and_the_way_home_behind_half_of_them() -> None:
    for link in (1e6, 1e15):
        task = job(6, link=link)
        wait = home = 5 * task.machine.hop(task.kv_bytes, 6)  # gradients are as long
        own = layout_work("zigzag", CAUSAL, 64, 64, 6, task.machine).own
        forward, backward = (task.compute(own, way) + task.merge(own, way) for way in (False, True))
        found, beside = allgather(task, "zigzag", CAUSAL), ring(task, "zigzag", CAUSAL)
        assert found.forward.exposed == pytest.approx(max(0, wait - forward))
        assert found.backward.exposed == pytest.approx(max(0, wait - backward / 2) + max(0, home - backward / 2))
        assert found.forward.compute == pytest.approx(beside.forward.compute)
        assert found.forward.merge == beside.forward.merge


def test_slow_links_of_a_ring_of_rings_have_a_turn_to_hide_behind() -> None:
    """2 nodes of 4: of 7 hops one is slow, and as long as 4 steps hides it."""
    task = replace(job(8), machine=replace(job(8).machine, ranks_per_node=4, node_latency=0.0), inner=4)
    step = task.seconds(layout_work("striped", FULL, 64, 64, 8, task.machine).own, False)
    hidden, late = (replace(task.machine, node_bandwidth=task.kv_bytes / (many * step)) for many in (3.9, 6))
    assert double_ring(replace(task, machine=hidden), "striped", FULL).forward.exposed == 0
    assert double_ring(replace(task, machine=late), "striped", FULL).forward.exposed == pytest.approx(
        2 * step, rel=0.05
    )
    assert ring(replace(task, machine=hidden), "striped", FULL).forward.exposed > 10 * step


def test_a_ring_between_nodes_carries_the_keys_of_a_ranks_own_heads() -> None:
    """2 nodes of 4 ranks: two of 8 heads and one of keys for each, all tokens of its node."""
    task = replace(job(8), machine=replace(job(8).machine, ranks_per_node=4), inner=4)
    own = replace(SHAPE, heads=2, kv_heads=1)
    between = ring(replace(task, shape=own, local=256, keys=256, world=2), "striped", CAUSAL)
    found = alltoall(task, "striped/4", CAUSAL)
    assert found.forward.compute == between.forward.compute
    slow = replace(task, machine=replace(task.machine, node_bandwidth=1e3))
    far = 256 * 2 * 16 * 2 / 1e3
    assert alltoall(slow, "striped/4", CAUSAL).forward.exposed == pytest.approx(far, rel=0.01)


def test_alltoall_keeps_a_second_output_and_copies_of_keys() -> None:
    """8 heads and 2 of keys, width 16, 2 bytes, 64 tokens: nothing is copied for 2 ranks, 4 have keys twice."""
    output, keys = 64 * 8 * 16 * 2, 64 * 2 * 32 * 2
    kept = {world: alltoall(job(world), "contiguous", CAUSAL).kept for world in (1, 2, 4)}
    assert kept == {1: 0, 2: output, 4: output + keys}


@pytest.mark.parametrize(("world", "heads"), [(1, 8), (2, 4), (3, 3), (4, 2), (8, 1), (16, 1)])
def test_alltoall_computes_whole_heads(world: int, heads: int) -> None:
    whole = alltoall(job(1, 128, tile=1), "contiguous", CAUSAL).forward.compute
    share = alltoall(job(world, 128, tile=1), "contiguous", CAUSAL)
    pairs = (128 * world) * (128 * world + 1) / (128 * 129)
    assert share.forward.compute == pytest.approx(whole * pairs * heads / 8)
    assert share.critical / share.even == pytest.approx(world * heads / 8)


def test_a_hop_is_as_slow_as_the_slowest_link() -> None:
    chip = machine_of_nodes()
    assert chip.hop(1e9, 4) == pytest.approx(1e-6 + 0.01)
    assert chip.hop(1e9, 5) == pytest.approx(1e-5 + 0.1)


def test_an_exchange_goes_both_ways_at_once() -> None:
    chip = machine_of_nodes()
    assert chip.exchange(1e9, 1) == 0
    assert chip.exchange(1e9, 4) == pytest.approx(3e-6 + 0.01)
    assert chip.exchange(1e9, 8) == pytest.approx(4 * 1e-5 + 4 / 7 * 0.1)


def machine_of_nodes() -> Machine:
    return replace(
        MACHINES["a100"],
        ranks_per_node=4,
        link_bandwidth=1e11,
        link_latency=1e-6,
        node_bandwidth=1e10,
        node_latency=1e-5,
    )


def test_nothing_travels_and_nothing_is_merged_in_a_world_of_one() -> None:
    for transport in (ring, allgather, alltoall):
        found = transport(job(1), "contiguous", CAUSAL)
        assert found.forward == Phase(found.forward.compute, 0, 0, 0)
        assert found.backward == Phase(found.backward.compute, 0, 0, 0)
