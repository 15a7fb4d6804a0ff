"""What joins, pads and shifts the sequence itself, one or several: exact on worlds of threads, or refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.errors import UnsupportedModelError
from sp.passes import pipeline, preparation
from sp.passes.attention import RewriteAttention
from sp.passes.fxtools import op_name
from sp.passes.localize import Localize
from sp.passes.manager import run_passes
from sp.passes.normalize import Normalize
from sp.passes.place import Place
from sp.passes.reduce import Reduce
from tests.passes.exact import STRATEGIES, check, check_forward
from tests.passes.programs import IDS_BS, Small, listing, ops, program_of


def hidden(m: Small, ids: Tensor) -> Tensor:
    return m.l(m.e(ids))


def attended(x: Tensor, causal: bool = True) -> Tensor:
    q = x.unflatten(-1, (2, 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, is_causal=causal).transpose(1, 2).flatten(2)


def prepended(m: Small, ids: Tensor) -> Tensor:
    """Two learned tokens in front."""
    return torch.cat([m.p[None, :2].expand(ids.shape[0], -1, -1), hidden(m, ids)], 1)


CASES: dict[str, Callable[..., Any]] = {
    "prepended tokens": prepended,
    "class token": lambda m, ids: m.l(attended(prepended(m, ids) + m.p[: ids.shape[1] + 2], causal=False)[:, 0]),
    "prefix, dropped again": lambda m, ids: m.l(attended(prepended(m, ids))[:, 2:]) + m.e(ids),
    "appended and prepended": lambda m, ids: attended(
        torch.cat([prepended(m, ids), m.p[None, :1].expand(2, -1, -1)], 1)
    ),
    "twice the sequence": lambda m, ids: attended(torch.cat([hidden(m, ids), m.e(ids)], 1))[:, ids.shape[1] :],
    "joined bools": lambda m, ids: torch.cat([hidden(m, ids) > 0, m.e(ids) > 1], 1).sum() * m.l.bias,
    "padded": lambda m, ids: F.pad(hidden(m, ids), (0, 0, 2, 1), value=0.5).sin(),
    "token shift": lambda m, ids: F.pad(hidden(m, ids), (0, 0, 1, -1)) * 0.3 + m.e(ids),
    "spans that do not meet": lambda m, ids: m.e(ids)[:, 1:] * hidden(m, ids)[:, :-1],
    "a span and embedded ids": lambda m, ids: m.e(ids)[:, 1:] + m.e(ids[:, :-1]),
    "attention of a span": lambda m, ids: m.l(attended(hidden(m, ids)[:, 1:])) + hidden(m, ids)[:, :-1],
    "attention to fewer keys": lambda m, ids: F.scaled_dot_product_attention(
        hidden(m, ids)[:, None], hidden(m, ids)[:, None, 2:], m.e(ids)[:, None, 2:]
    ),
    "a few tokens": lambda m, ids: hidden(m, ids)[:, 1:3].sum(1) + hidden(m, ids)[:, -2:].amax(1),
}


@pytest.mark.parametrize("name", CASES)
def test_exact(name: str) -> None:
    check_forward(CASES[name], STRATEGIES[list(CASES).index(name) % 3])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world", [1, 2, 4, 7])
@pytest.mark.parametrize("name", CASES)
def test_exact_in_every_world(name: str, world: int, strategy: str) -> None:
    check_forward(CASES[name], strategy, (max(world, 5), 9, 14), world)


@pytest.mark.slow
def test_sixteen_ranks() -> None:
    """From one token for each on."""
    for name, strategy in zip(("class token", "token shift", "attention of a span"), STRATEGIES, strict=True):
        check_forward(CASES[name], strategy, (16, 17, 29), 16)


def test_as_many_tokens_as_ranks() -> None:
    """The span of S - 1 tokens leaves one rank without any."""
    for strategy in STRATEGIES:
        check_forward(CASES["attention of a span"], strategy, (5,), 5)


def translated(m: Small, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """An encoder, a decoder that looks at it, and both joined."""
    x, y = hidden(m, source) + m.p[: source.shape[1]], m.e(target)
    x, y = x + attended(x, causal=False), y + attended(y)
    q, k = (z.unflatten(-1, (2, 2)).transpose(1, 2) for z in (y, x))
    y = y + F.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2)
    joint = attended(torch.cat([x, y], 1), causal=False)
    loss = F.cross_entropy(m.l(y)[:, :-1].flatten(0, 1), target[:, 1:].flatten() % 4)
    return loss, joint[:, source.shape[1] :] + joint[:, : source.shape[1]].mean(1, keepdim=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_encoder_and_decoder(strategy: str) -> None:
    torch.manual_seed(0)
    model = Small(translated).double()
    ids = torch.randint(0, 11, (2, 20))
    program = program_of(model, ids[:, :13], ids[:, 13:], passes=pipeline(), strategy=strategy)
    assert len(program.sequences) == 2
    for lengths in ((13, 7), (6, 11), (3, 4)):
        check(model, program, [torch.randint(0, 11, (2, length)) for length in lengths])


def test_printed(golden: Callable[[str, str], None]) -> None:
    def forward(m: Small, ids: Tensor) -> Any:
        x = prepended(m, ids)
        return x[:, :2], F.pad(x[:, 2:], (0, 0, 1, 0))

    golden("passes/sequence_rules", listing(program_of(forward, IDS_BS, passes=pipeline())))


def test_what_stays_on_its_rank_costs_nothing() -> None:
    program = program_of(lambda m, ids: hidden(m, ids)[:, 1:].relu(), IDS_BS, passes=pipeline(outputs="local"))
    assert "sp.move" not in ops(program)


def test_every_second_token_is_refused() -> None:
    assert_refused(lambda m, ids: hidden(m, ids)[:, ::2], "it slices the sequence with a step")


def test_other_pads_are_refused() -> None:
    reflected = lambda m, ids: F.pad(hidden(m, ids).mT, (1, 1), mode="reflect")  # noqa: E731
    assert_refused(reflected, "it pads the sequence with mode 'reflect'")


def test_merged_sequences_are_not_lengthened() -> None:
    assert_refused(lambda m, ids: F.pad(hidden(m, ids).flatten(0, 1), (0, 0, 0, 1)), "merged with other dims")


def assert_refused(forward: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        program_of(forward, IDS_BS, passes=(Normalize(), Place()))
    assert reason in str(caught.value)
    assert "remedy:" in str(caught.value)


def test_what_a_score_is_computed_from_is_whole() -> None:
    """Leaves of an attention: ids stay replicated, also where their shards exist; a parameter's gradient is summed."""

    def forward(m: Small, ids: Tensor) -> Tensor:
        return attended(hidden(m, ids)) + (ids[:, :, None] + m.p[:1, None])

    program = program_of(forward, IDS_BS, passes=(*preparation(), RewriteAttention(), Reduce()))
    (node,) = (node for node in program.graph.nodes if op_name(node) == "sp.attention")
    (ids,) = program.graph.find_nodes(op="placeholder")
    (table,) = (node for node in program.graph.find_nodes(op="get_attr") if str(node.target).endswith("p"))
    node.update_arg(3, [ids, table])
    text = listing(run_passes(program, [Place(), Localize()]))
    assert "attention_default = sp.attention(transpose, transpose, transpose, [inputs_0, replicate_" in text, text
    assert "sp.shard(inputs_0" in text
