"""Costs: work against the definition of the mask, bytes against formulas and against what is really sent."""

import copy
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any, cast

import pytest
import sympy
import torch
import torch.distributed as dist
from torch import nn

import sp
from sp.layout import find_layout
from sp.mask import CAUSAL, FULL, Band
from sp.models import Llama, LlamaConfig
from sp.program import AttentionSite
from sp.runtime.world import World, find_world
from sp.score import Score
from sp.show.costs import attention_costs
from sp.strategy import STRATEGIES
from sp.testing.ranks import run_mesh, run_ranks

WINDOW = Band(3, 0)
ops = sys.modules["sp.runtime.ops.attention"]  # the package names the op so as well


S = sympy.Symbol("S", integer=True, positive=True)


def site(mask: Band, item_bytes: int = 2, transport: str = "ring") -> AttentionSite:
    return AttentionSite(
        "attention", "model.py:1", mask, S, S, heads=8, kv_heads=2, head_width=16, value_width=24,
        item_bytes=item_bytes, kernel="dense", why="", score=Score(), words=(), transport=transport,
    )  # fmt: skip


@pytest.mark.parametrize("mask", [CAUSAL, FULL, WINDOW, Band(5, 2)], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_work_is_what_the_mask_lets_through(strategy: str, mask: Band) -> None:
    length, shape = 37, (2, 3) if STRATEGIES[strategy].axes else (5,)
    made, world = STRATEGIES[strategy].on(shape), prod(shape)
    layout, transport = find_layout(made.layout), made.transport
    costs = attention_costs(site(mask, transport=transport), made, length, world)
    pairs = [
        8 * sum(mask.visible(i, j) for i in layout.positions(length, rank, world) for j in range(length))
        for rank in range(world)
    ]
    if transport == "alltoall":  # 8 heads for 5 ranks, or for 3
        heads = (1, 2, 1, 2, 2) if world == 5 else (2, 3, 3)
        joined = [pairs[n : n + len(heads)] for n in range(0, world, len(heads))]
        pairs = [sum(group) * share // 8 for group in joined for share in heads]
    assert list(costs.area) == pairs
    assert costs.balance == pytest.approx(sum(pairs) / world / max(pairs))


@pytest.mark.parametrize(("strategy", "balance"), [(name, 8 / 15 if name == "ring" else 1.0) for name in STRATEGIES])
def test_balance_of_long_causal_sequences(strategy: str, balance: float) -> None:
    """Contiguous: the last of 8 ranks has 7.5 of 8·4 half blocks.  The others tend to even shares."""
    made = site(CAUSAL, transport=STRATEGIES[strategy].transport)
    costs = attention_costs(made, STRATEGIES[strategy].on((2, 4)), 2**14, 8)
    assert costs.balance == pytest.approx(balance, rel=1e-3)


@pytest.mark.parametrize("item_bytes", [2, 4, 8])
@pytest.mark.parametrize("strategy", ["ring", "striped", "zigzag"])
def test_ring_sends_un_expanded_keys_and_values_and_gradients_in_the_dtype_of_sums(
    strategy: str, item_bytes: int
) -> None:
    length, world = 64, 4
    costs = attention_costs(site(CAUSAL, item_bytes), STRATEGIES[strategy], length, world)
    elements = length // world * 2 * (16 + 24)  # of one rank's keys and values, 2 heads of them
    sums = {2: 4, 4: 4, 8: 8}[item_bytes]
    assert set(costs.forward) == {(world - 1) * elements * item_bytes}
    assert set(costs.backward) == {(world - 1) * elements * (item_bytes + sums)}


@pytest.mark.parametrize("item_bytes", [2, 4, 8])
def test_gathered_keys_travel_as_in_a_ring_and_their_gradients_one_time_less(item_bytes: int) -> None:
    costs = attention_costs(site(CAUSAL, item_bytes, "allgather"), STRATEGIES["allgather"], 64, 4)
    elements = 16 * 2 * (16 + 24)
    assert set(costs.forward) == {3 * elements * item_bytes}
    assert set(costs.backward) == {3 * elements * 2 * item_bytes}, "each part is rounded once"


def test_heads_for_tokens() -> None:
    """On 2 ranks each has 4 of 8 query heads and one of 2 key heads, so that half of everything travels."""
    costs = attention_costs(site(CAUSAL, 2, "alltoall"), STRATEGIES["ulysses"], 64, 2)
    queries, keys, result = 32 * 4 * 16 * 2, 32 * (16 + 24) * 2, 32 * 4 * 24 * 2
    assert set(costs.forward) == {queries + keys + result}
    assert set(costs.backward) == {result + queries + keys}, (
        "the gradient of the output there, those of the others back"
    )


def test_key_heads_on_several_ranks_get_their_gradients_from_each() -> None:
    """On 4 ranks each has 2 query heads and one key head."""
    costs = attention_costs(site(CAUSAL, 2, "alltoall"), STRATEGIES["ulysses"], 64, 4)
    queries, keys, result = 3 * 16 * 2 * 16 * 2, 3 * 16 * (16 + 24), 3 * 16 * 2 * 24 * 2
    assert set(costs.forward) == {queries + keys * 2 + result}
    assert set(costs.backward) == {result + queries + keys * 2}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_rank_sends_nothing(strategy: str) -> None:
    made = site(CAUSAL, transport=STRATEGIES[strategy].transport)
    costs = attention_costs(made, STRATEGIES[strategy].on((1, 1)), 64, 1)
    assert (costs.forward, costs.backward, costs.balance) == ((0,), (0,), 1.0)
    assert (costs.outer_forward, costs.outer_backward) == ((0,), (0,))


def test_a_ring_of_rings_sends_no_more_than_one_ring_but_for_the_turns() -> None:
    """Keys: 8 blocks but one go from rank to rank, and one of each turn goes twice, round and on."""
    made = STRATEGIES["double_ring"].on((2, 4))
    costs = attention_costs(site(CAUSAL, transport="double_ring"), made, 64, 8)
    elements = 8 * 2 * (16 + 24)
    assert set(costs.forward) == {7 * elements * 2}
    assert set(costs.outer_forward) == {elements * 2}
    assert set(costs.backward) == {7 * elements * (2 + 4)}
    assert set(costs.outer_backward) == {elements * (2 + 4)}


@pytest.mark.parametrize(("queries", "visited"), [(64, (False, False)), (24, (False, True)), (8, (True, True))])
def test_what_is_less_travels(queries: int, visited: tuple[bool, bool]) -> None:
    """Queries of 8 heads, or keys and values of 2: decided for each direction."""
    costs = attention_costs(site(FULL), STRATEGIES["striped"], queries, 4, 128)
    assert costs.visited == visited
    keys = 3 * 32 * 2 * (16 + 24) * 2, 3 * 32 * 2 * (16 + 24) * (2 + 4)
    share = 3 * queries // 4 * 8
    ways = share * (16 * 2 + (24 + 1) * 4), share * ((16 + 2 * 24) * 2 + 4 + 16 * 4)
    assert (costs.forward[0], costs.backward[0]) == tuple(map(min, keys, ways))


def test_window_ends_the_ring_early() -> None:
    """Neighbours see each other: one hop of keys there, and one of gradients home."""
    costs = attention_costs(site(WINDOW), STRATEGIES["ring"], 64, 4)
    elements = 16 * 2 * (16 + 24)
    assert set(costs.forward) == {elements * 2}
    assert set(costs.backward) == {elements * 2 + elements * 4}


class Counted:
    """A process group that counts the bytes that leave this rank."""

    def __init__(self, group: dist.ProcessGroup, count: Callable[[int], None]) -> None:
        self._group, self._count = group, count

    def recv(self, *args: Any) -> dist.Work:
        return self._group.recv(*args)

    def send(self, tensors: list[torch.Tensor], *rest: Any) -> dist.Work:
        self._count(sum(x.nbytes for x in tensors))
        return self._group.send(tensors, *rest)

    def allgather(self, received: list[list[torch.Tensor]], sent: list[torch.Tensor]) -> dist.Work:
        self._count(sent[0].nbytes * (self._group.size() - 1))
        return self._group.allgather(received, sent)

    def alltoall_base(self, received: torch.Tensor, sent: torch.Tensor, source: list[int], to: list[int]) -> dist.Work:
        self._count((sum(to) - to[self._group.rank()]) * sent.element_size())
        return self._group.alltoall_base(received, sent, source, to)


def count_bytes(monkeypatch: pytest.MonkeyPatch, sent: Counter[tuple[int, str]], phases: Mapping[int, str]) -> None:
    """What attentions send from each rank in each phase."""

    def found(name: str) -> World:
        world = find_world(name)

        def counted(at: World, prefix: str) -> World:
            def count(number: int) -> None:
                sent[world.rank, prefix + phases[world.rank]] += number

            return replace(at, group=cast("Any", Counted(at.group, count))) if at.group else at

        axes = tuple(counted(axis, prefix) for axis, prefix in zip(world.axes, ("outer_", ""), strict=False))
        return replace(counted(world, ""), axes=axes)

    monkeypatch.setattr(ops, "find_world", found)


@pytest.mark.parametrize(
    ("strategy", "dtype"),
    [
        *((name, torch.float32) for name in STRATEGIES),
        *(("striped", torch.float64), ("allgather", torch.bfloat16), ("ulysses", torch.bfloat16)),
        *(("usp", torch.bfloat16), ("double_ring", torch.bfloat16)),
    ],
)
def test_reported_bytes_are_those_that_travel(
    strategy: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that attention sends between 3 ranks is counted; of 17 tokens they hold 5 or 6, of 4 heads 1 or 2.

    On two axes, 2 x 3, also along which of them it goes."""
    sent: Counter[tuple[int, str]] = Counter()
    phases = dict.fromkeys(range(6), "forward")
    count_bytes(monkeypatch, sent, phases)
    model = Llama(LlamaConfig(layers=2, heads=4, kv_heads=2, width=32)).to(dtype)
    ids = torch.zeros(1, 17, dtype=torch.long)

    def train(mesh: dist.ProcessGroup | sp.MeshGroups) -> dict[str, Any]:
        parallel = sp.parallelize(copy.deepcopy(model), strategy, mesh=mesh, compile=False)
        total = parallel(ids).logits.sum()
        phases[parallel.layout.rank] = "backward"
        total.backward()
        return parallel.report().as_dict()

    reports = run_mesh((2, 3), train) if STRATEGIES[strategy].axes else run_ranks(3, train)
    for rank, report in enumerate(reports):
        (attention,) = report["attentions"]
        assert attention["count"] == 2
        for phase in ("forward", "backward"):
            outer = attention[f"outer_{phase}"][rank]
            assert sent[rank, phase] == 2 * (attention[f"sent_{phase}"][rank] - outer)
            assert sent[rank, f"outer_{phase}"] == 2 * outer
            assert bool(outer) == bool(STRATEGIES[strategy].axes)


class Cross(nn.Module):
    """A short sequence attends to a long one."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        q, k = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in (self.q(x), self.kv(memory)))
        return nn.functional.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("length", "visited"), [(7, [True, True]), (31, [False, True]), (33, [False, False])])
def test_queries_that_travel_are_counted(length: int, visited: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: Counter[tuple[int, str]] = Counter()
    phases = dict.fromkeys(range(3), "forward")
    count_bytes(monkeypatch, sent, phases)
    model = Cross()
    x, memory = torch.randn(1, length, 16), torch.randn(1, 32, 16)

    def train(group: dist.ProcessGroup) -> dict[str, Any]:
        parallel = sp.parallelize(copy.deepcopy(model), "striped", mesh=group, compile=False)
        total = parallel(x, memory).sum()
        phases[group.rank()] = "backward"
        total.backward()
        return parallel.report().as_dict()

    for rank, report in enumerate(run_ranks(3, train)):
        (attention,) = report["attentions"]
        assert attention["queries_travel"] == visited
        assert sent[rank, "forward"] == attention["sent_forward"][rank]
        assert sent[rank, "backward"] == attention["sent_backward"][rank]


def test_queries_without_a_sequence() -> None:
    """Each rank works on its own keys, and sends its results of 5 queries to the 3 others, in float32."""
    merged = replace(site(FULL), queries=sympy.Integer(5), transport="merge")
    costs = attention_costs(merged, STRATEGIES["striped"], 5, 4, 18)
    assert costs.area == (200, 200, 160, 160)
    assert costs.forward == (3 * 5 * 8 * (24 + 1) * 4,) * 4
    assert costs.backward == (0,) * 4
