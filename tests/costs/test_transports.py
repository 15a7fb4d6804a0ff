"""Transports: seconds against a ring played hop by hop, bytes against those that the report counts from plans."""

from dataclasses import replace
from itertools import product

import pytest
import sympy

from sp.costs import MACHINES, AttentionShape, Machine, Phase
from sp.costs.phase import Job
from sp.costs.transports import TRANSPORTS, allgather, alltoall, double_ring, ring
from sp.layout import LAYOUTS
from sp.mask import CAUSAL, FULL, Band
from sp.program import AttentionSite
from sp.score import Score
from sp.show.costs import attention_costs
from sp.strategy import STRATEGIES
from tests.costs import brute

SHAPE = AttentionShape(heads=8, kv_heads=2, head_width=16, value_width=16, item_bytes=2)
# Transfers that hide behind all steps, behind the long ones only, and behind none.
LINKS = (1e15, 2e10, 1e8)


def job(world: int, local: int = 64, link: float = 1e12, tile: int = 8) -> Job:
    chip = replace(MACHINES["a100"], link_bandwidth=link, link_latency=1e-9, ranks_per_node=64, tile=(tile, tile))
    return Job(SHAPE, chip, local, world, local)


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
@pytest.mark.parametrize("strategy", [name for name, each in STRATEGIES.items() if each.transport == "ring"])
def test_the_report_counts_the_same_bytes(strategy: str, mask: Band) -> None:
    symbol, world, local = sympy.Symbol("S"), 5, 12
    site = AttentionSite(
        "attention", "", mask, symbol, symbol, SHAPE.heads, SHAPE.kv_heads, SHAPE.head_width, SHAPE.head_width,
        item_bytes=2, kernel="dense", why="", score=Score(), words=(), transport="ring",
    )  # fmt: skip
    counted = attention_costs(site, STRATEGIES[strategy], local * world, world)
    found = ring(job(world, local), STRATEGIES[strategy].layout, mask)
    assert set(counted.forward) == {found.forward.sent}
    assert set(counted.backward) == {found.backward.sent}


def test_allgather_sends_what_a_ring_does_and_hides_nothing() -> None:
    task = job(6, link=1e6)
    hop = task.machine.hop(task.kv_bytes, 6), task.machine.hop(task.gradient_bytes, 6)
    found, beside = allgather(task, "zigzag", CAUSAL), ring(task, "zigzag", CAUSAL)
    assert found.forward.sent == beside.forward.sent
    assert found.backward.sent == beside.backward.sent
    assert found.forward.exposed == pytest.approx(5 * hop[0])
    assert found.backward.exposed == pytest.approx(5 * (hop[0] + hop[1]))
    assert found.forward.merge == found.backward.merge == 0
    assert found.forward.compute == pytest.approx(beside.forward.compute)


@pytest.mark.parametrize("mask", [CAUSAL, FULL], ids=str)
@pytest.mark.parametrize("name", ["usp", "usp_zigzag", "double_ring"])
def test_the_report_counts_the_same_bytes_on_two_axes(name: str, mask: Band) -> None:
    """Of equal tokens; an all-to-all is counted for heads that divide, and for the log of sums not at all."""
    symbol, local, strategy = sympy.Symbol("S"), 12, STRATEGIES[name].on((3, 2))
    site = AttentionSite(
        "attention", "", mask, symbol, symbol, SHAPE.heads, SHAPE.kv_heads, SHAPE.head_width, SHAPE.head_width,
        item_bytes=2, kernel="dense", why="", score=Score(), words=(), transport=strategy.transport,
    )  # fmt: skip
    counted = attention_costs(site, strategy, local * 6, 6)
    found = TRANSPORTS[strategy.transport](replace(job(6, local), inner=2), strategy.layout, mask)
    logs = local * SHAPE.heads // 2 * 4 if strategy.transport == "alltoall" else 0
    assert set(counted.forward) == {found.forward.sent + logs}
    if name == "double_ring":
        assert set(counted.backward) == {found.backward.sent}


def test_slow_hops_have_the_time_of_a_turn() -> None:
    """With 4 neighbours a node's link of a quarter of the speed is hidden as well as theirs; of a tenth it is not."""
    nodes = replace(job(16).machine, ranks_per_node=4, link_bandwidth=1e10, node_latency=4e-9)

    def waits(node_bandwidth: float, inner: int | None) -> float:
        machine = replace(nodes, node_bandwidth=node_bandwidth)
        return double_ring(replace(job(16), machine=machine, inner=inner), "striped", CAUSAL).forward.exposed

    near = ring(replace(job(16), machine=replace(nodes, ranks_per_node=16)), "striped", CAUSAL).forward.exposed
    assert waits(2.5e9, 4) == pytest.approx(near)
    assert near < waits(1e9, 4) < waits(1e9, None)


def test_an_all_to_all_inside_of_nodes_and_a_ring_between_them() -> None:
    """Links inside and between nodes; heads that divide, so that nothing is computed twice."""
    task = replace(job(8), machine=replace(job(8).machine, ranks_per_node=4, node_bandwidth=1e9))
    found = alltoall(replace(task, inner=4), "striped/4", CAUSAL)
    inside = alltoall(replace(task, world=4), "contiguous", CAUSAL)
    assert found.forward.exposed > inside.forward.exposed + task.machine.hop(0, 8)
    assert found.even == pytest.approx(64 * 8 * (64 * 8 + 1) / 2 / 8)
    assert found.critical == pytest.approx(found.even, rel=2e-2)


def test_alltoall_sends_less_the_more_ranks_there_are() -> None:
    """8 heads and 2 of keys, width 16, 2 bytes, 64 tokens: q and out, and k and v, which 4 ranks have to copy."""
    found = {world: alltoall(job(world), "contiguous", CAUSAL).forward.sent for world in (1, 2, 4)}
    assert found == {1: 0, 2: 64 * 32 * (16 + 4) / 2, 4: 64 * 32 * (16 + 8) * 3 / 4}


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
