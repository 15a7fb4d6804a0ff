"""FSDP in the cost model: what it saves, what it sends, and what hides that."""

from dataclasses import replace

import pytest

import sp
from sp.costs import MACHINES, ModelShape, Sharding

SHAPE = ModelShape(
    layers=32, width=4096, heads=32, kv_heads=8, head_width=128, mlp_width=14336, vocab_size=128256
)  # Llama 3 8B
FAST = replace(MACHINES["h100"], link_bandwidth=1e15, node_bandwidth=1e15, link_latency=0.0, node_latency=0.0)
LENGTH = 2**18


def test_state_is_divided_and_three_blocks_are_whole() -> None:
    """Of 8 billion parameters 2 bytes each, as many of gradients, 12 of Adam."""
    whole, part = (sp.estimate(SHAPE, LENGTH, 64, FAST, sharding=each)["zigzag"] for each in (None, Sharding(64, 12.0)))
    block = 2 * 128256 * 4096  # the embedding is larger than a layer
    assert whole.memory - part.memory == pytest.approx((4 - 16 / 64) * SHAPE.parameters - 3 * block)


def test_parameters_are_gathered_twice_and_gradients_scattered() -> None:
    plain, sharded = (sp.estimate(SHAPE, LENGTH, 64, FAST, sharding=each)["zigzag"] for each in (None, Sharding(64)))
    assert sharded.sent - plain.sent == pytest.approx(3 * 2 * SHAPE.parameters * 63 / 64)
    assert sharded.seconds == pytest.approx(plain.seconds), "links cost nothing here"
    assert sharded.parameters.sent == sharded.sent - plain.sent


def test_what_is_not_hidden_behind_products_is_waited_for() -> None:
    """Twice as many tokens of each rank hide twice as much; few hide nothing."""
    slow = replace(FAST, node_bandwidth=5e9, link_bandwidth=5e9)
    once = 2 * SHAPE.parameters * 63 / 64 / 5e9

    def late(length: int) -> tuple[float, float]:
        found = sp.estimate(SHAPE, length, 64, slow, sharding=Sharding(64))["ulysses"]
        return found.parameters.exposed, found.dense

    exposed, dense = late(2**12)
    assert exposed == pytest.approx(3 * once - dense)
    assert late(2**24) == (0.0, pytest.approx(dense * 2**12))
    assert "waiting for parameters" in sp.estimate(SHAPE, 2**12, 64, slow, sharding=Sharding(64))["ulysses"].why


def test_one_rank_keeps_everything() -> None:
    assert sp.estimate(SHAPE, 4096, 1, FAST, sharding=Sharding(1)).found == sp.estimate(SHAPE, 4096, 1, FAST).found


def test_balance_is_that_of_the_busiest_rank() -> None:
    found = sp.estimate(SHAPE, 2**20, 64, FAST)
    assert found["ring"].balance == pytest.approx(64 / 127, rel=1e-3)
    assert found["zigzag"].balance == pytest.approx(1.0, rel=1e-3)
    assert found["ulysses"].balance == 0.5  # 32 heads for 64 ranks


def test_what_cannot_be_sharded() -> None:
    with pytest.raises(sp.InputError, match=r"divided over 0 ranks.*\n.*at least one rank"):
        Sharding(0)
    with pytest.raises(sp.InputError, match="causal, recompute and sharding are for a ModelShape"):
        sp.estimate(sp.models.GPT(sp.models.GPTConfig()), 64, 2, "cpu", sharding=Sharding(2))
