"""Localized programs on worlds of threads: every output and every gradient is the single device's."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sp.errors import UnsupportedModelError
from sp.models import Llama, LlamaConfig
from sp.passes import pipeline
from sp.passes.bind import bind
from sp.passes.call import Call
from sp.passes.capture import capture
from sp.passes.fxtools import op_name, shape
from sp.passes.localize import Localize
from sp.passes.manager import run_passes
from sp.passes.output_forms import OutputForm
from sp.passes.placements import Placements
from sp.program import Replicated, Sharded
from sp.runtime.world import seat_name
from sp.strategy import find_strategy
from sp.testing.cutting import Spread
from sp.testing.ranks import run_ranks
from tests.passes.exact import STRATEGIES, check, check_forward, single
from tests.passes.programs import IDS_BS, Small, listing, program_of

*LOCALIZED, _, _ = pipeline()  # without overlap and verify
WORLD = 3


def targets(ids: Tensor) -> Tensor:
    return F.pad(ids % 4, (0, 1), value=-100)[:, 1:].flatten()


def rotated(m: Small, ids: Tensor) -> Tensor:
    angles = torch.arange(ids.shape[1], dtype=torch.float64)[:, None] * m.p[0, :2]
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    h = m.e(ids)
    first, second = h.chunk(2, -1)
    return h * cos + torch.cat([-second, first], -1) * sin


def attended(m: Small, ids: Tensor) -> Tensor:
    q = m.l(m.e(ids)).view(*ids.shape, 2, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, m.e(ids).view(*ids.shape, 2, 2).transpose(1, 2), is_causal=True)


# Of the ids.  Each ends in one or more tensors, whose squares are summed for the gradients.
OF_IDS: dict[str, Callable[..., Any]] = {
    "linear": lambda m, ids: m.l(m.e(ids)).relu(),
    "position table": lambda m, ids: m.e(ids) + m.p[: ids.shape[1]],
    "position table, looked up": lambda m, ids: m.e(ids) + F.embedding(torch.arange(ids.shape[1]), m.p),
    "position ids": lambda m, ids: m.e(ids) * (ids.cumsum(1) + torch.arange(ids.shape[1]))[..., None],
    "reversed ids": lambda m, ids: m.e(ids.flip(1)) - m.e(ids),
    "a table that nobody shards": lambda m, ids: m.p[: ids.shape[1]] * 2,
    "a parameter in both worlds": lambda m, ids: m.l(m.e(ids)) * m.l.bias.sum() + (m.p * m.l.bias).sum(),
    "a parameter twice": lambda m, ids: m.l(m.l(m.e(ids)) @ m.l.weight),
    "tied weights": lambda m, ids: F.linear(m.e(ids), m.e.weight),
    "reduced and whole again": lambda m, ids: m.e(ids) - m.e(ids).mean(1, keepdim=True),
    "pooled": lambda m, ids: m.l(m.e(ids).mean(1)).tanh() @ m.l.weight,
    "pooled, met again": lambda m, ids: m.e(ids) * m.l(m.e(ids).sum(1)).softmax(-1)[:, None],
    "pooled twice": lambda m, ids: (m.e(ids) * m.e(ids).sum(1, keepdim=True).tanh()).sum(1),
    "counts": lambda m, ids: m.e(ids) / (m.e(ids) > 0).sum() + ids.shape[1],
    "spans": lambda m, ids: m.e(ids)[:, 1:] * m.l(m.e(ids))[:, 1:],
    "spans of spans": lambda m, ids: m.l(m.e(ids)[:, 2:][:, :-1]).sum(1),
    "the last two": lambda m, ids: m.l(m.e(ids))[:, -2:],
    "a span meets a whole value": lambda m, ids: m.e(ids)[:, 1:] + torch.arange(ids.shape[1])[:-1, None],
    "a span meets a table": lambda m, ids: m.e(ids)[:, 1:] + m.p[: ids.shape[1]][:-1],
    "merged": lambda m, ids: m.l(m.e(ids).flatten(0, 1)).relu(),
    "merged, and a span": lambda m, ids: m.l(m.e(ids)[:, :-1].flatten(0, 1)).view(ids.shape[0], -1, 4) + 1,
    "merged behind": lambda m, ids: m.e(ids).flatten(1, 2).tanh(),
    "merged from a whole value": lambda m, ids: m.e(ids).flatten(0, 1) * (ids + 1).flatten()[:, None],
    "sequence first": lambda m, ids: m.l(m.e(ids).transpose(0, 1)).sum(1),
    "sequence last": lambda m, ids: m.l(m.e(ids)).mT * (ids[:, None] + 1.0),
    "parts": lambda m, ids: torch.cat([part * n for n, part in enumerate(m.e(ids).split(1, -1))], -1),
    "stacked": lambda m, ids: torch.stack([m.e(ids), m.p[: ids.shape[1]].expand(ids.shape[0], -1, -1)], 1),
    "where": lambda m, ids: torch.where(ids[..., None] > 4, m.e(ids), m.l.bias),
    "masked": lambda m, ids: m.e(ids).masked_fill((ids % 2 == 0)[..., None], 0.5),
    "rotary": rotated,
    "attention": attended,
    "norms": lambda m, ids: F.rms_norm(F.layer_norm(m.e(ids), (4,), m.l.bias, m.l.bias), (4,), m.l.bias),
    "detached": lambda m, ids: m.e(ids).detach() * m.l(m.e(ids)) + m.p[: ids.shape[1]].detach(),
    "a number read": lambda m, ids: m.e(ids) * m.e(ids).sum().item(),
    "loss": lambda m, ids: F.cross_entropy(m.l(m.e(ids)).flatten(0, 1), targets(ids)),
    "loss of shifted scores": lambda m, ids: F.cross_entropy(m.e(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten() % 4),
    "sum of losses": lambda m, ids: F.cross_entropy(m.e(ids).flatten(0, 1), targets(ids), reduction="sum") / 7,
    "loss of each token": lambda m, ids: F.cross_entropy(m.e(ids).flatten(0, 1), targets(ids), reduction="none"),
    "smoothed loss": lambda m, ids: F.cross_entropy(m.e(ids).flatten(0, 1), targets(ids), label_smoothing=0.1),
    "several outputs": lambda m, ids: (m.e(ids), m.e(ids).sum(), m.l.bias * 2, ids * 2, m.e(ids)[:, 1:]),
    "an input as output": lambda m, ids: (ids, m.e(ids)),
    "creation from a shard": lambda m, ids: m.e(ids) + m.e(ids).new_ones(ids.shape[1], 1),
    "selected by contents": lambda m, ids: m.e(ids).sum(1) + m.e(ids[ids > 3]).sum(),
}

# Of a floating input, whose gradient is compared as well.
OF_X: dict[str, Callable[..., Any]] = {
    "linear": lambda m, x: m.l(x),
    "index domain alone": lambda m, x: x.flip(1).cumsum(1),
    "whole and sharded": lambda m, x: m.l(x) * x.sum(1, keepdim=True) + x.flip(1),
    "never meets a parameter": lambda m, x: x.softmax(1).square(),
    "mean": lambda m, x: (x.mean() * m.l(x).mean(1), x.mean((0, 1))),
    "twice": lambda m, x: m.l(x[:, 1:]) + x[:, :-1],
}


@pytest.mark.parametrize("name", OF_IDS)
def test_of_ids(name: str) -> None:
    check_of_ids(name, STRATEGIES[list(OF_IDS).index(name) % 3])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", OF_IDS)
def test_of_ids_in_every_strategy(name: str, strategy: str) -> None:
    check_of_ids(name, strategy)


def check_of_ids(name: str, strategy: str) -> None:
    check_forward(OF_IDS[name], strategy)


@pytest.mark.parametrize("name", OF_X)
def test_of_floating_inputs(name: str) -> None:
    torch.manual_seed(0)
    model = Small(OF_X[name]).double()
    x = torch.rand(2, 8, 4, dtype=torch.float64, requires_grad=True)
    check(model, program_of(model, x, passes=pipeline(), strategy="zigzag"), [x])


def forward(m: Small, ids: Tensor) -> tuple[Tensor, Tensor]:
    h = m.l(m.e(ids)) + m.p[: ids.shape[1]]
    return F.cross_entropy(h[:, :-1].flatten(0, 1), ids[:, 1:].flatten() % 4), h


def test_printed(golden: Callable[[str, str], None]) -> None:
    """What is inserted, and where; no rank and no length appears in it."""
    golden("passes/localize", listing(program_of(forward, IDS_BS, passes=LOCALIZED)))


def test_every_insertion_says_why() -> None:
    program = program_of(forward, IDS_BS, passes=LOCALIZED)
    assert [(insertion.op, insertion.value) for insertion in program.insertions] == [
        ("sp.replicate", "model_e_weight"),
        ("sp.shard", "inputs_0"),
        ("sp.replicate", "model_l_weight"),
        ("sp.replicate", "model_l_bias"),
        ("sp.shard", "slice_1"),
        ("sp.narrow", "slice_2"),
        ("sp.shard", "remainder"),
        ("sp.reduce", "cross_entropy_loss_default"),
        ("sp.unshard", "add"),
    ]
    assert all(insertion.why for insertion in program.insertions)
    inserted = [node for node in program.graph.nodes if op_name(node).startswith("sp.")]
    assert len(inserted) == len(program.insertions)


def test_placements_are_found_once() -> None:
    """Place hands them on; of a copied graph they are found anew, and are the same."""
    *before, localize = LOCALIZED
    placed = program_of(forward, IDS_BS, passes=before)
    copied = placed.fork()
    assert isinstance(placed.found, Placements)
    assert copied.found is None
    assert listing(localize.run(placed)) == listing(localize.run(copied))
    assert localize.run(placed).found is None


def test_one_program_for_all_ranks() -> None:
    """The rank is nowhere in it, nor is the world."""
    program = program_of(forward, IDS_BS, passes=pipeline())
    numbers = {arg for node in program.graph.nodes for arg in node.args if isinstance(arg, int)}
    assert numbers <= {0, 1, 2, 4, -1, -100, torch.iinfo(torch.int64).max}


def test_replicated_programs_stay_as_they_are() -> None:
    program = program_of(lambda m, ids: (m.p * 2, ids.cumsum(1)), IDS_BS, passes=pipeline())
    assert program.insertions == ()


def test_dead_global_values_are_gone() -> None:
    """Positions become positions of the shard; nothing of global length is left but what is asked for."""

    def positions(m: Small, ids: Tensor) -> Tensor:
        return m.e(ids) * (torch.arange(ids.shape[1])[:, None] * 2 + 1)

    program = program_of(positions, IDS_BS, passes=pipeline(outputs="local"))
    S = program.sequence.symbol
    whole = [
        node.name
        for node in program.graph.nodes
        if isinstance(node.meta.get("placement"), Replicated) and any(size.has(S) for size in shape(node))
    ]
    assert whole == ["inputs_0", "arange"]


def test_of_a_decoder_only_integers_of_the_labels_are_of_global_length() -> None:
    """Rotary tables and the causal mask are computed on the shard, or not at all, however deep the model."""
    model = Llama(LlamaConfig(vocab_size=61, layers=3, heads=2, kv_heads=1, width=16))
    program = program_of(model, IDS_BS, passes=pipeline(outputs="local"), labels=IDS_BS)
    whole = [node for node in program.graph.nodes if isinstance(node.meta.get("placement"), Replicated)]
    whole = [node for node in whole if any(size.has(program.sequence.symbol) for size in shape(node))]
    assert [op_name(node) for node in whole if node.op == "call_function"] == [
        *("aten.arange", "aten.pad", "aten.slice", "aten.flatten", "aten.ne"),
    ]


OUTPUT_FORMS: list[tuple[OutputForm, list[bool]]] = [
    ("global", [False, False]),
    ("local", [False, True]),
    ({"1": "local"}, [False, True]),
    ({"1": "global"}, [False, False]),
    ({}, [False, False]),
]


@pytest.mark.parametrize(("outputs", "local"), OUTPUT_FORMS)
def test_output_forms(outputs: OutputForm, local: list[bool]) -> None:
    """A loss is whole in every form; a shard is this rank's positions."""
    model = Small(forward).double()
    program = program_of(model, IDS_BS, passes=pipeline(outputs=outputs))
    assert [port.local for port in program.outputs] == local
    assert [port.dim for port in program.outputs] == [None, 1]
    (loss, h), _ = single(model, [IDS_BS])
    found = run_ranks(WORLD, lambda group: bind(program, seat_name(group.group_name))(IDS_BS))
    spread = Spread("striped", WORLD, {})
    for rank, (its_loss, its_h) in enumerate(found):
        torch.testing.assert_close(its_loss, loss)
        whole = Sharded.whole(1, sympy.Integer(IDS_BS.shape[1]))
        torch.testing.assert_close(its_h, spread.cut(h, whole, rank) if local[1] else h)


def test_local_inputs() -> None:
    """Each rank passes its shard; sizes that the model reads are those of the whole."""

    def trunk(m: Small, x: Tensor) -> Tensor:
        return m.l(x) * x.shape[1] + m.p[: x.shape[1]] + x.mean(1, keepdim=True)

    model, x = Small(trunk).double(), torch.rand(2, 10, 4, dtype=torch.float64)
    call, tensors = Call.of(model, (torch.empty(2, 4, 4, dtype=torch.float64),), {})
    options = {"sequence_dim": 1, "strategy": find_strategy("zigzag"), "length": 10, "local_inputs": True}
    captured, _ = capture(model, call, tensors, **options)
    program = run_passes(captured, pipeline(outputs="local"))
    spread, whole = Spread("zigzag", WORLD, {}), Sharded.whole(1, sympy.Integer(10))
    right = model(x)

    def rank(group: dist.ProcessGroup) -> list[Tensor]:
        mine = spread.cut(x, whole, group.rank())
        return list(bind(program, seat_name(group.group_name))(mine, torch.empty(10, 0)))

    for number, (found,) in enumerate(run_ranks(WORLD, rank)):
        torch.testing.assert_close(found, spread.cut(right, whole, number))


def test_check_is_able_to_fail() -> None:
    program = program_of(forward, IDS_BS, passes=pipeline()).fork()
    shard = next(node for node in program.graph.nodes if op_name(node) == "sp.shard")
    shard.args[0].meta["placement"] = Sharded.whole(1, program.sequence.symbol)
    with pytest.raises(AssertionError, match="cuts a shard again"):
        Localize().check(program)


class Programs:
    """Random programs over [B, S, 4]: whatever is accepted must be exact."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int) -> Callable[[Small, Tensor], Tensor]:
        """[B, S, 4]"""
        if depth == 0:
            return self.random.choice(
                [
                    lambda m, ids: m.e(ids),
                    lambda m, ids: m.e(ids.flip(1)),
                    lambda m, ids: m.p[: ids.shape[1]].expand(ids.shape[0], -1, -1),
                    lambda m, ids: (ids % 3)[..., None].expand(-1, -1, 4).double(),
                    lambda m, ids: m.e(ids) * torch.arange(ids.shape[1])[:, None] / 9,
                ]
            )
        a, b = self.value(depth - 1), self.value(self.random.randint(0, depth - 1))
        dim, number = self.random.choice([0, 1, 2, (0, 1), (1, 2), (0, 1, 2)]), self.random.randint(1, 3)
        return self.random.choice(
            [
                lambda m, ids: m.l(a(m, ids)),
                lambda m, ids: a(m, ids) @ m.l.weight + m.l.bias,
                lambda m, ids: a(m, ids).tanh() * b(m, ids),
                lambda m, ids: a(m, ids) + b(m, ids),
                lambda m, ids: a(m, ids) - b(m, ids).mean(dim, keepdim=True),
                lambda m, ids: a(m, ids) * b(m, ids).sum(dim, keepdim=True).tanh(),
                lambda m, ids: F.layer_norm(a(m, ids), (4,), m.l.bias),
                lambda m, ids: torch.cat([a(m, ids)[..., :number], b(m, ids)[..., number:]], -1),
                lambda m, ids: torch.where(b(m, ids) > 0, a(m, ids), b(m, ids)),
                lambda m, ids: m.l(a(m, ids).flatten(0, 1)).view(ids.shape[0], ids.shape[1], 4),
                lambda m, ids: m.l(a(m, ids).transpose(0, 1)).transpose(0, 1),
                lambda m, ids: a(m, ids).mT.relu().mT,
                lambda m, ids: a(m, ids).softmax(-1),
                lambda m, ids: a(m, ids).cumsum(1),
                lambda m, ids: sum(part * b(m, ids) for part in a(m, ids).split(2, -1)[0].split(1, -1)),
                lambda m, ids: torch.stack([a(m, ids), b(m, ids)], 1).sum(1),
                lambda m, ids: F.embedding((a(m, ids) > 0).sum(-1), m.p),
                lambda m, ids: attention(a(m, ids), b(m, ids)),
            ]
        )

    def program(self) -> Callable[[Small, Tensor], Any]:
        a, b = self.value(self.random.randint(1, 3)), self.value(1)
        return self.random.choice(
            [
                a,
                lambda m, ids: (a(m, ids), b(m, ids).sum(1)),
                lambda m, ids: F.cross_entropy(a(m, ids).flatten(0, 1), targets(ids)) + b(m, ids).square().mean(),
                lambda m, ids: F.cross_entropy(a(m, ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten() % 4),
                lambda m, ids: (a(m, ids)[:, 1:] * b(m, ids)[:, 1:], a(m, ids)[:, :-1]),
                lambda m, ids: m.l(a(m, ids)[:, 2:]).flatten(0, 1).tanh().sum(0),
            ]
        )


def attention(a: Tensor, b: Tensor) -> Tensor:
    q, k = (x.view(*x.shape[:2], 2, 2).transpose(1, 2) for x in (a + 0.0, b + 0.0))
    return F.scaled_dot_product_attention(q, k, k, is_causal=True).transpose(1, 2).flatten(2)


def check_random_programs(seed: int, count: int) -> int:
    """How many of them are accepted; those are exact."""
    torch.manual_seed(seed)
    programs, accepted = Programs(seed), 0
    for number in range(count):
        model = Small(programs.program()).double()
        try:
            program = program_of(model, IDS_BS, passes=pipeline(), strategy=STRATEGIES[number % 3])
        except UnsupportedModelError:
            continue
        accepted += 1
        for length in (9, 7):
            check(model, program, [torch.randint(0, 11, (2, length))])
    return accepted


def test_random_programs() -> None:
    assert check_random_programs(0, 12) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_random_programs(seed: int) -> None:
    check_random_programs(seed, 30)
