"""Costs: work against the definition of the mask, bytes against formulas and against what a ring really sends."""

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
import torch.distributed as dist

import sp
from sp.layout import LAYOUTS
from sp.mask import CAUSAL, FULL, Band
from sp.models import Llama, LlamaConfig
from sp.program import AttentionSite
from sp.runtime import ring
from sp.runtime.comm import Exchange, World
from sp.score import Score
from sp.show.costs import attention_costs
from sp.strategy import STRATEGIES
from sp.testing.ranks import run_ranks

WINDOW = Band(3, 0)


S = sympy.Symbol("S", integer=True, positive=True)


def site(mask: Band, item_bytes: int = 2) -> AttentionSite:
    return AttentionSite(
        "attention", "model.py:1", mask, S, S, heads=8, kv_heads=2, head_width=16, value_width=24,
        item_bytes=item_bytes, kernel="dense", why="", score=Score(), words=(), transport="ring",
    )  # fmt: skip


@pytest.mark.parametrize("mask", [CAUSAL, FULL, WINDOW, Band(5, 2)], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_work_is_what_the_mask_lets_through(strategy: str, mask: Band) -> None:
    length, world = 37, 5
    layout = LAYOUTS[STRATEGIES[strategy].layout]
    costs = attention_costs(site(mask), STRATEGIES[strategy], length, world)
    pairs = [
        sum(mask.visible(i, j) for i in layout.positions(length, rank, world) for j in range(length))
        for rank in range(world)
    ]
    assert list(costs.area) == pairs
    assert costs.balance == pytest.approx(sum(pairs) / world / max(pairs))


@pytest.mark.parametrize(("strategy", "balance"), [("ring", 8 / 15), ("striped", 1.0), ("zigzag", 1.0)])
def test_balance_of_long_causal_sequences(strategy: str, balance: float) -> None:
    """Contiguous: the last of 8 ranks has 7.5 of 8·4 half blocks.  The others tend to even shares."""
    costs = attention_costs(site(CAUSAL), STRATEGIES[strategy], 2**14, 8)
    assert costs.balance == pytest.approx(balance, rel=1e-3)


@pytest.mark.parametrize("item_bytes", [2, 4, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ring_sends_un_expanded_keys_and_values_and_gradients_in_the_dtype_of_sums(
    strategy: str, item_bytes: int
) -> None:
    length, world = 64, 4
    costs = attention_costs(site(CAUSAL, item_bytes), STRATEGIES[strategy], length, world)
    elements = length // world * 2 * (16 + 24)  # of one rank's keys and values, 2 heads of them
    sums = {2: 4, 4: 4, 8: 8}[item_bytes]
    assert set(costs.forward) == {(world - 1) * elements * item_bytes}
    assert set(costs.backward) == {(world - 1) * elements * item_bytes + world * elements * sums}


def test_one_rank_sends_nothing() -> None:
    costs = attention_costs(site(CAUSAL), STRATEGIES["ring"], 64, 1)
    assert (costs.forward, costs.backward, costs.balance) == ((0,), (0,), 1.0)


def test_window_ends_the_ring_early() -> None:
    """Neighbours see each other: one hop of keys there, and one more of gradients home."""
    costs = attention_costs(site(WINDOW), STRATEGIES["ring"], 64, 4)
    elements = 16 * 2 * (16 + 24)
    assert set(costs.forward) == {elements * 2}
    assert set(costs.backward) == {elements * 2 + 2 * elements * 4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_reported_bytes_are_those_that_travel(
    strategy: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every exchange of a real ring of 3 ranks over 17 tokens is counted; ranks hold 5 or 6 of them."""
    sent: Counter[tuple[int, str]] = Counter()
    phases, post = dict.fromkeys(range(3), "forward"), ring.post_exchange

    def counted(world: World, send: torch.Tensor, *rest: Any) -> Exchange:
        sent[world.rank, phases[world.rank]] += send.numel() * send.element_size()
        return post(world, send, *rest)

    monkeypatch.setattr(ring, "post_exchange", counted)
    model = Llama(LlamaConfig(layers=2, heads=4, kv_heads=2, width=32)).to(dtype)
    ids = torch.zeros(1, 17, dtype=torch.long)

    def train(group: dist.ProcessGroup) -> dict[str, Any]:
        parallel = sp.parallelize(copy.deepcopy(model), strategy, mesh=group, compile=False)
        total = parallel(ids).logits.sum()
        phases[group.rank()] = "backward"
        total.backward()
        return parallel.report().as_dict()

    for rank, report in enumerate(run_ranks(3, train)):
        (attention,) = report["attentions"]
        assert attention["count"] == 2
        assert sent[rank, "forward"] == 2 * attention["sent_forward"][rank]
        assert sent[rank, "backward"] == 2 * attention["sent_backward"][rank]


def test_queries_without_a_sequence() -> None:
    """Each rank works on its own keys, and sends its results of 5 queries to the 3 others, in float32."""
    merged = replace(site(FULL), queries=sympy.Integer(5), transport="merge")
    costs = attention_costs(merged, STRATEGIES["striped"], 5, 4, 18)
    assert costs.area == (25, 25, 20, 20)
    assert costs.forward == (3 * 5 * 8 * (24 + 1) * 4,) * 4
    assert costs.backward == (0,) * 4
