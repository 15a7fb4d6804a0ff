"""Training over ranks drifts from that on one device no further than rounding drives two runs of one device apart."""

from dataclasses import replace

import pytest
import torch

from benchmarks.course import PLAIN, TRUTH, YARDSTICKS, Training, gaps, single, threads
from benchmarks.drift import Drift, Options, measure, same
from sp.testing.ranks import run_processes
from tests.benchmarks.rank_bits import trained_twice

SHORT = Training(steps=60, looks=(1, 4, 16, 60), batch=2)


@pytest.fixture(scope="module")
def on_one_device() -> Drift:
    runs = {PLAIN: single(SHORT, "float32")}
    runs |= {way: single(SHORT, "float32", way) for way in YARDSTICKS}
    return Drift(SHORT.looks, runs, single(SHORT, TRUTH))


@pytest.mark.parametrize(
    ("strategy", "world"),
    [("striped", 3), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("ring", "ulysses"))],
)
def test_a_short_training_drifts_within_its_bound(strategy: str, world: int, on_one_device: Drift) -> None:
    """And every rank has the same bits of every loss and parameter, or replicas would part."""
    courses = threads(SHORT, "float32", strategy, world)
    assert all(same(course, courses[0]) for course in courses)
    drift = replace(on_one_device, runs={**on_one_device.runs, "ranks": courses[0]})
    assert drift.worst("ranks") <= 1.0
    assert courses[0].losses[-1] < courses[0].losses[0] - 1
    assert max(gaps(courses[0], drift.runs[PLAIN], SHORT.looks)) < 2e-5


def test_parameters_off_by_one_part_in_ten_thousand_are_out_of_bounds(on_one_device: Drift) -> None:
    """So that the bound says something."""
    wrong = single(SHORT, "float32")
    for kept in wrong.parameters:
        kept.mul_(1 + 1e-4)
    drift = replace(on_one_device, runs={**on_one_device.runs, "wrong": wrong})
    assert drift.worst("wrong") > 1.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_long_training_drifts_within_its_bound(dtype: str) -> None:
    drift = measure(Options(strategies=("striped", "ulysses"), worlds=(2,), steps=300), dtype)
    ranks = [name for name in drift.runs if name not in (PLAIN, *YARDSTICKS)]
    assert len(ranks) == 3
    assert max(drift.worst(name) for name in ranks) <= 1.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_have_the_same_bits_run_for_run_and_rank_for_rank() -> None:
    first, *others = [run for rank in run_processes(2, trained_twice, timeout_s=600) for run in rank]
    for other in others:
        assert other[0] == first[0]
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(other[1], first[1], strict=True))
