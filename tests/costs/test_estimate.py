"""Estimates: what is chosen, why, at what cost of our own, and what is refused."""

import time
from dataclasses import replace

import pytest

import sp
from sp.costs import MACHINES, Estimates, ModelShape

SHAPE = ModelShape(
    layers=32, width=4096, heads=32, kv_heads=8, head_width=128, mlp_width=14336, vocab_size=128256
)  # Llama 3 8B


def names(estimates: Estimates) -> set[str]:
    return {each.strategy.name for each in estimates.found}


def test_every_strategy_is_estimated() -> None:
    found = sp.estimate(SHAPE, 65536, 8, "h100")
    assert names(found) == {name for name, each in sp.STRATEGIES.items() if each.takes(1)}
    assert names(found) | {name for name, _ in found.refused} == set(sp.STRATEGIES)
    for each in found.found:
        parts = (each.forward.compute, each.forward.merge, each.backward.compute, each.backward.merge, each.exposed)
        assert each.seconds == pytest.approx(sum(parts) + each.dense)
        assert each.sent == each.forward.sent + each.backward.sent


def test_meshes_of_two_axes() -> None:
    """4 nodes of 8: heads are dealt inside, and a hop between nodes has the time of 8 ranks' work to hide behind."""
    found = sp.estimate(SHAPE, 2**20, (4, 8), replace(MACHINES["h100"], memory=1e15))
    assert names(found) == {name for name, each in sp.STRATEGIES.items() if each.takes(2)}
    assert ("ring", "takes a mesh of one axis") in found.refused
    assert ("usp", "takes a mesh of two axes") in sp.estimate(SHAPE, 2**20, 32, "h100").refused
    assert "ring, striped, zigzag, allgather, ulysses: takes a mesh of one axis" in str(found)
    flat = sp.estimate(SHAPE, 2**16, 32, found.machine, strategies=["striped"])["striped"]
    nested = sp.estimate(SHAPE, 2**16, (4, 8), found.machine)
    assert nested["double_ring"].exposed < 0.5 * flat.exposed
    assert nested["usp"].exposed < 0.5 * flat.exposed
    assert nested["usp"].sent < 0.5 * flat.sent


def test_a_world_of_4096_costs_less_than_a_second() -> None:
    start = time.perf_counter()
    found = sp.estimate(SHAPE, 2**25, 4096, "h100")
    assert time.perf_counter() - start < 1
    assert found["ring"].seconds > 1.8 * found["striped"].forward.compute


def test_the_best_is_the_fastest_that_fits() -> None:
    plenty = replace(MACHINES["h100"], memory=1e15)
    found = sp.estimate(SHAPE, 2**18, 8, plenty)
    assert found.best.seconds == min(each.seconds for each in found.found)
    assert all(each.fits for each in found.found)
    memories = sorted(each.memory for each in found.found)
    scarce = sp.estimate(SHAPE, 2**18, 8, replace(plenty, memory=memories[0]))
    assert scarce.best.memory == memories[0]
    assert [each.fits for each in scarce.found].count(True) == [each.memory for each in scarce.found].count(memories[0])


def test_the_choice_follows_the_machine() -> None:
    """Slow links: what sends least.  Slow merging: what merges nothing.  Neither: what balances best."""
    plain = replace(MACHINES["h100"], memory=1e15)
    slow = replace(plain, link_bandwidth=1e8)
    assert sp.estimate(SHAPE, 2**15, 8, slow).best.strategy.name == "ulysses"
    merging = replace(plain, merge_passes=50.0)
    assert sp.estimate(SHAPE, 2**17, 8, merging).best.strategy.name == "ulysses"
    assert sp.estimate(SHAPE, 2**20, 64, plain).best.strategy.name == "zigzag"


def test_reasons_name_the_losses_and_their_share_of_the_step() -> None:
    found = sp.estimate(SHAPE, 2**20, 64, replace(MACHINES["h100"], memory=1e15))
    assert found["ring"].why.startswith("work of the busiest rank 1.98 × the mean +4")
    assert "kernel tiles and bands +10 %" in found["striped"].why
    assert found["ulysses"].why.startswith("work of the busiest rank 2.00 × the mean")  # 32 heads for 64 ranks
    assert "waiting for transfers" in found["allgather"].why
    ideal = replace(MACHINES["a100"], tile=(1, 1), banded=1.0)
    assert sp.estimate(SHAPE, 2**16, 1, ideal)["ring"].why == "nothing lost"


def test_losses_add_up_to_what_an_even_share_would_not_take() -> None:
    found = sp.estimate(SHAPE, 2**18, 16, "h100")
    pairs, speed = 2**18 * (2**18 + 1) / 2, MACHINES["h100"].attention_flops
    even = SHAPE.layers * SHAPE.attention.pair_flops * 3.5 * pairs / 16 / speed
    for each in found.found:
        lost = sum(int(part.rsplit("+", 1)[1].removesuffix(" %")) for part in each.why.split(", "))
        assert lost == pytest.approx(100 * (1 - (even + each.dense) / each.seconds), abs=2)


def test_the_table() -> None:
    lines = str(sp.estimate(SHAPE, 2**18, 8, "h100")).splitlines()
    assert lines[0] == "262,144 tokens on 8 ranks of h100; 32 layers of width 4,096, 8.0 billion parameters"
    assert lines[2].split() == ["strategy", "step", "attention", "waiting", "sent", "memory", "why"]
    assert all("does not fit; " in line for line in lines[4:9])
    again = str(sp.estimate(SHAPE, 2**18, 8, replace(MACHINES["h100"], memory=1e15)))
    assert "does not fit" not in again
    assert [line.split()[0] for line in again.splitlines()[4:9]].index("ring") == 4


def test_without_a_mask_all_ring_layouts_are_alike() -> None:
    found = sp.estimate(SHAPE, 2**16, 8, "h100", causal=False)
    seconds = {name: found[name].forward.compute for name in ("ring", "striped", "zigzag")}
    assert len(set(seconds.values())) == 1


def test_lengths_are_rounded_up_to_an_even_share() -> None:
    for length in (8 * 1000 - 15, 8 * 1000 - 1, 8 * 1000):
        assert sp.estimate(SHAPE, length, 8, "cpu").found == sp.estimate(SHAPE, 8000, 8, "cpu").found


def test_recomputing_trades_time_for_memory() -> None:
    kept, again = (sp.estimate(SHAPE, 2**18, 8, "h100", recompute=way)["zigzag"] for way in (False, True))
    assert again.memory < 0.5 * kept.memory
    assert again.dense == pytest.approx(4 / 3 * kept.dense)
    assert again.forward == kept.forward


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sp.estimate(SHAPE, 100, 0, "h100"), sp.StrategyError, "a world of 0 ranks"),
        (lambda: sp.estimate(SHAPE, 7, 8, "h100"), sp.InputError, "7 tokens for 8 ranks"),
        (
            lambda: sp.estimate(SHAPE, 64, 8, "cpu", strategies=["usp"]),
            sp.StrategyError,
            "needed: two axes for usp",
        ),
        (lambda: sp.estimate(SHAPE, 64, 8, "h1000"), sp.StrategyError, "there is no machine 'h1000'"),
        (lambda: sp.estimate(SHAPE, 64, 8, "cpu", strategies=["stripped"]), sp.StrategyError, "no strategy 'stripped'"),
        (
            lambda: sp.estimate(SHAPE, 64, 8, "cpu", strategies=["ring"])["zigzag"],
            sp.StrategyError,
            "needed: one of: ring",
        ),
    ],
)
def test_what_cannot_be_estimated(call, error: type[sp.SpError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
