"""The choice: what fits and is fastest, on machines so extreme that a wrong sign would choose otherwise."""

import math
from dataclasses import replace

import pytest

import sp
from sp.choice import choose
from sp.costs import MACHINES, Attending, AttentionShape, Estimates, Machine, Workload, estimate_workload, machine_of
from sp.mask import CAUSAL, FULL, Band
from sp.strategy import STRATEGIES

PLAIN = replace(MACHINES["h100"], memory=math.inf)
FREE = replace(
    PLAIN, link_bandwidth=1e30, link_latency=0.0, node_bandwidth=1e30, node_latency=0.0, memory_bandwidth=1e30
)
IDEAL = replace(FREE, tile=(1, 1), banded=1.0)
STRANDED = replace(PLAIN, link_bandwidth=1e6, node_bandwidth=1e6)


ONE_AXIS = {name for name, each in STRATEGIES.items() if each.takes(1)}


def workload(heads: int = 8, kv_heads: int = 8, mask: Band = CAUSAL, length: int = 2**16) -> Workload:
    """Attention alone."""
    shape = AttentionShape(heads, kv_heads, 128, 128, 2)
    return Workload("attention", length, (Attending(shape, mask, length, length, 1),), 0.0, 0.0, 0.0)


def estimates(work: Workload, machine: Machine, world: int = 8) -> Estimates:
    return estimate_workload(work, (world,), machine)


def fastest(found: Estimates) -> set[str]:
    least = min(each.seconds for each in found.found)
    return {each.strategy.name for each in found.found if each.seconds == pytest.approx(least, rel=1e-3)}


def test_nothing_but_work_counts_where_links_are_free() -> None:
    """Causal: all but a contiguous ring are balanced.  Without a mask all are, where heads divide."""
    assert fastest(estimates(workload(), IDEAL)) == ONE_AXIS - {"ring"}
    assert fastest(estimates(workload(mask=FULL), IDEAL)) == ONE_AXIS


def test_few_heads_leave_ranks_idle_under_ulysses() -> None:
    found = estimates(workload(heads=2, kv_heads=2), IDEAL)
    assert found["ulysses"].seconds == pytest.approx(4 * found["zigzag"].seconds, rel=1e-3)
    assert choose(found).name in ("striped", "zigzag", "allgather")


def test_slow_links_want_what_sends_least() -> None:
    """Heads for sequence sends 4 times an eighth of a token's numbers; a ring sends all keys 7 times."""
    found = estimates(workload(heads=32, kv_heads=32), STRANDED)
    assert choose(found).name == "ulysses"
    assert found["ulysses"].sent == min(each.sent for each in found.found)
    grouped = estimates(workload(heads=64, kv_heads=1), STRANDED, world=2)
    assert choose(grouped).name != "ulysses"  # one head of keys is cheaper to pass on than half of all queries


def test_a_window_that_ends_within_a_neighbour_wants_a_contiguous_ring() -> None:
    """Two steps in place of 64; striped takes part in all of them, and Ulysses has 8 heads for 64 ranks."""
    found = estimates(workload(mask=Band(1023, 0)), PLAIN, world=64)
    assert choose(found).name == "ring"
    assert found["ring"].sent < 0.1 * found["striped"].sent


def test_coarse_kernel_tiles_want_layouts_with_few_bands() -> None:
    """A tile as large as a block: striped has a band in each of 8 steps, zigzag in one."""
    found = estimates(workload(), replace(IDEAL, tile=(8192, 8192)))
    assert found["striped"].seconds > 1.7 * found["zigzag"].seconds
    assert fastest(found) == {"zigzag", "allgather", "ulysses"}


def test_slow_merging_wants_one_call() -> None:
    slow = replace(PLAIN, merge_passes=1000.0)
    assert choose(estimates(workload(), slow)).name == "ulysses"
    idle = estimates(workload(heads=1, kv_heads=1), replace(PLAIN, merge_passes=0.0))
    assert idle["ulysses"].seconds == max(each.seconds for each in idle.found)


def test_what_does_not_fit_is_not_chosen() -> None:
    found = estimates(workload(), replace(PLAIN, merge_passes=1000.0))
    best = choose(found)
    scarce = replace(found.machine, memory=found[best.name].memory - 1)
    cheaper = replace(found.machine, memory=found["zigzag"].memory)
    assert found[best.name].memory < found["zigzag"].memory < found["allgather"].memory
    with pytest.raises(sp.StrategyError, match="no strategy fits"):
        choose(estimates(found.workload, scarce))
    again = estimates(found.workload, cheaper)
    assert [each.strategy.name for each in again.found if not each.fits] == ["allgather"]
    assert choose(again) == best


def test_the_fastest_of_those_that_fit() -> None:
    """An all-gather pays one latency at a time too, but nothing between steps; it takes more memory than any other."""
    distant = replace(IDEAL, link_bandwidth=1e9)
    found = estimates(workload(heads=1, kv_heads=1), distant)
    ranked = sorted(found.found, key=lambda each: each.seconds)
    largest = max(found.found, key=lambda each: each.memory)
    again = estimates(found.workload, replace(distant, memory=largest.memory - 1))
    left = [each for each in ranked if each.strategy != largest.strategy]
    assert choose(again) == left[0].strategy


def test_equals_are_chosen_in_the_order_of_the_table() -> None:
    found = estimates(workload(mask=FULL), IDEAL, world=1)
    assert fastest(found) == ONE_AXIS
    assert choose(found) == next(iter(STRATEGIES.values()))


def test_nothing_fits() -> None:
    found = estimates(workload(), replace(PLAIN, name="tiny", memory=2.0**20))
    with pytest.raises(sp.StrategyError) as error:
        choose(found)
    said, needed, remedy = str(error.value).splitlines()
    assert said == (
        "no strategy fits: 65,536 tokens on 8 ranks take, on each rank, ulysses 72.0 MiB, ring 192.5 MiB, "
        "striped 192.5 MiB, zigzag 192.5 MiB, allgather 512.0 MiB"
    )
    assert needed == (
        "  needed: at most 1.0 MiB, the memory of tiny; 0 of it for parameters and gradients, "
        "which count whole even where FSDP cuts them"
    )
    assert remedy == "  remedy: take more ranks, name a strategy, or pass machine= with the memory that there is"


@pytest.mark.parametrize(
    ("device", "chip", "name"),
    [
        ("cpu", "", "cpu"),
        ("cuda", "NVIDIA A100-SXM4-80GB", "a100"),
        ("cuda", "NVIDIA H100 80GB HBM3", "h100"),
        ("cuda", "NVIDIA H200", "h200"),
        ("cuda", "NVIDIA B200", "h100 (assumed: of NVIDIA B200 nothing is known)"),
        ("meta", "", "h100 (assumed: of meta nothing is known)"),
    ],
)
def test_the_machine_goes_by_the_device(device: str, chip: str, name: str) -> None:
    assert machine_of(device, chip).name == name
