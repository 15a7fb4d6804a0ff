"""Steps: as if worked out one by one, in kilobytes and in time of the world; costs of all ranks without any of them."""

import pickle
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

import sp.steps
from sp.layout import LAYOUTS, find_layout
from sp.mask import CAUSAL, FULL, Band
from sp.plan import count_steps, make_plan, make_step, one_step
from sp.program import AttentionSite
from sp.show.costs import attention_costs
from sp.steps import Steps, count_hops
from sp.strategy import STRATEGIES
from tests.show.test_costs import site

MASKS = (FULL, CAUSAL, Band(3, 0), Band(0, 0), Band(2, 5), Band(None, -1), Band(-2, 5), Band(-4, 1), Band(7, None))
FAR = 10_485_760


@pytest.fixture
def covered(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often two ranks' tokens are compared."""
    counts: Counter[str] = Counter()

    def counting(name: str):
        found = getattr(sp.steps, name)

        def run(*args: object) -> object:
            counts[name] += 1
            return found(*args)

        return run

    for name in ("cover", "meets"):
        monkeypatch.setattr(sp.steps, name, counting(name))
    make_plan.cache_clear()
    count_hops.cache_clear()
    return counts


@pytest.mark.parametrize("layout", [*LAYOUTS, "striped:3", "zigzag/2"])
def test_steps_are_those_made_one_by_one(layout: str) -> None:
    for mask, length, keys in product(MASKS, (8, 17, 37), (8, 23)):
        for rank in range(4):
            plan = make_plan(layout, mask, length, 4, rank, keys)
            expected = [make_step(plan.layout, mask, length, keys, 4, rank, (rank - hop) % 4) for hop in range(4)]
            assert [*plan.steps] == expected == [plan.steps[hop] for hop in range(4)]
            assert plan.steps[1:3] == tuple(expected[1:3])
            assert plan.steps[-1] == expected[-1] == one_step(plan, (rank + 1) % 4)
            assert len(plan.steps) == 4
            with pytest.raises(IndexError):
                plan.steps[4]


def test_steps_compare_by_what_they_are_made_of() -> None:
    steps = Steps(find_layout("striped"), CAUSAL, 64, 64, 4, 1)
    assert steps == replace(steps)
    assert hash(steps) == hash(replace(steps))
    assert steps != replace(steps, rank=2)


@pytest.mark.parametrize("layout", [*LAYOUTS, "striped:3"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_hops_until_no_rank_has_work(layout: str, mask: Band) -> None:
    for world, length, keys in product((1, 2, 3, 5), (7, 12, 30), (7, 12, 30)):
        plans = [make_plan(layout, mask, length, world, rank, keys) for rank in range(world)]
        last = max((hop for plan in plans for hop, step in enumerate(plan.steps) if step.tiles), default=0)
        assert count_steps(plans[0]) == last + 1


@pytest.mark.parametrize("name", [each.name for each in STRATEGIES.values() if each.takes(1)])
@pytest.mark.parametrize("length", [FAR, FAR - 777])
def test_a_plan_of_a_world_of_4096(name: str, length: int, covered: Counter[str]) -> None:
    """Made at once; its steps in time of the world; all of it is kilobytes, however long the sequence."""
    plan = make_plan(STRATEGIES[name].layout, CAUSAL, length, 4096, 1234)
    assert not covered, "nothing is worked out before it is asked for"
    assert plan.area == sum(CAUSAL.pairs(run, length) for run in plan.layout.runs(length, 1234, 4096))
    assert covered["cover"] == 4096
    assert len(pickle.dumps(plan)) < 20_000, "four bytes a step"
    assert len(plan.steps) == 4096
    assert covered["cover"] == 4096, "once for all"
    assert count_steps(plan) == 4096
    assert covered["meets"] <= 1


def test_windows_of_a_world_of_4096(covered: Counter[str]) -> None:
    """Neighbours alone: the world is looked at once, not once for each pair of ranks."""
    assert count_steps(make_plan("contiguous", Band(1023, 0), FAR, 4096, 0)) == 2
    assert count_steps(make_plan("contiguous", Band(5000, 0), FAR, 4096, 0)) == 3
    assert count_steps(make_plan("zigzag", Band(1023, 0), FAR, 4096, 0)) == 4096
    assert count_steps(make_plan("striped", Band(1023, 0), FAR, 4096, 0)) == 1024
    assert not covered["cover"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_costs_of_all_ranks_work_out_no_step(name: str, covered: Counter[str]) -> None:
    shape = (128, 8) if STRATEGIES[name].axes else (1024,)
    strategy = STRATEGIES[name].on(shape)
    costs = attention_costs(site(CAUSAL, transport=strategy.transport), strategy, FAR, 1024)
    assert sum(costs.area) == 8 * FAR * (FAR + 1) // 2
    assert not covered["cover"]
    assert covered["meets"] <= 2


def made(name: str, mask: Band) -> AttentionSite:
    return site(mask, transport=STRATEGIES[name].transport)


@pytest.mark.parametrize("mask", MASKS[:5], ids=str)
@pytest.mark.parametrize("name", STRATEGIES)
def test_costs_are_those_of_the_plans(name: str, mask: Band) -> None:
    """What keys travel, counted step by step, for transports whose hops the plan itself shows."""
    strategy = STRATEGIES[name].on((2, 3))
    world, length, keys = 6, 37, 41
    found = attention_costs(made(name, mask), strategy, length, world, keys)
    inner = strategy.shape[-1] if strategy.shape else None
    if strategy.transport == "alltoall":
        return
    plans = [make_plan(strategy.layout, mask, length, world, rank, keys, inner) for rank in range(world)]
    assert list(found.area) == [8 * plan.area for plan in plans]
    if strategy.transport != "ring" or any(found.visited):
        return
    steps, one = count_steps(plans[0]), 2 * (16 + 24) * 2
    for plan, sent in zip(plans, found.forward, strict=True):
        held = [plan.layout.local_length(keys, step.source, world) for step in plan.steps[: steps - 1]]
        assert sent == one * sum(held)
