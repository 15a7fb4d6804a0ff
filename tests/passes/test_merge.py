"""Queries without a sequence meet a sharded sequence: exact outputs and gradients, or refused with the reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.passes import pipeline
from sp.passes.fxtools import named, op_name
from tests.passes.exact import STRATEGIES, check_forward
from tests.passes.programs import IDS_BS, Small, program_of, rewritten

sdpa = F.scaled_dot_product_attention


def heads(x: Tensor) -> Tensor:
    """[B, S, 4] -> [B, 2, S, 2]"""
    return x.unflatten(-1, (2, 2)).transpose(1, 2)


def pooled(m: Small, ids: Tensor) -> Tensor:
    """SigLIP's pooling head: one learned query for each row."""
    x = m.e(ids)
    return sdpa(heads(m.p[None, :1]).expand(ids.shape[0], -1, -1, -1), heads(x), heads(m.l(x))).flatten(1)


def latents(m: Small, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Perceiver: a few latents read the sequence, see each other, and are read by it again."""
    x, z = m.e(ids), m.p[None, :5].expand(ids.shape[0], -1, -1)
    z = z + sdpa(heads(z), heads(m.l(x)), heads(x)).transpose(1, 2).flatten(2)
    z = z + sdpa(heads(z), heads(z), heads(z)).transpose(1, 2).flatten(2)
    return z, x + sdpa(heads(m.l(x)), heads(z), heads(z)).transpose(1, 2).flatten(2)


def grouped(m: Small, ids: Tensor) -> Tensor:
    """Two query heads share a key head; the query is computed from the sequence itself."""
    x = m.e(ids)
    q = heads(m.l(x.mean(1, keepdim=True)))
    return sdpa(q, heads(x)[:, :1], heads(x)[:, 1:], enable_gqa=True)


def last_token(m: Small, ids: Tensor) -> Tensor:
    """The last token's own attention, as a causal model has it."""
    x = m.e(ids)
    seen = torch.arange(ids.shape[1]) <= torch.arange(1)[:, None] + ids.shape[1] - 1
    return sdpa(heads(x[:, -1:]), heads(x), heads(x), attn_mask=seen)


def scaled_values(m: Small, ids: Tensor) -> Tensor:
    """Values of another size, and a scale."""
    x = m.e(ids)
    return sdpa(heads(m.p[None, :3].expand(ids.shape[0], -1, -1)), heads(x), heads(x)[..., :1], scale=0.3)


FORWARDS: list[Callable[[Small, Tensor], Any]] = [pooled, latents, grouped, last_token, scaled_values]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_exact(forward: Callable[[Small, Tensor], Any], strategy: str) -> None:
    check_forward(forward, strategy, lengths=(9, 7, 3))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_other_worlds(world: int) -> None:
    check_forward(latents, "zigzag", lengths=(8, 5), world=world)


def test_program() -> None:
    program = program_of(Small(latents), IDS_BS, passes=pipeline())
    (call,) = [node for node in program.graph.nodes if op_name(node) == "sp.attention"]
    assert named(call)["transport"] == "merge"
    (site,) = program.attentions
    assert (site.transport, site.queries) == ("merge", 5)
    reasons = {insertion.value: insertion.op for insertion in program.insertions}
    assert "sp.unshard" not in {op for value, op in reasons.items() if value != "add_2"}, "keys do not travel"


MASKS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "causal": ("a = le.Tensor(j, i) -> visible=a", lambda x: sdpa(x[:, :, :2], x, x, is_causal=True)),
    "of keys": (
        "l0:k -> visible=l0",
        lambda x: sdpa(x[:, :, -1:], x, x, attn_mask=torch.arange(x.shape[2])[None] > 3),
    ),
    "of both": (
        "l0:qk -> bias=l0",
        lambda x: sdpa(x[:, :, :2], x, x, attn_mask=torch.arange(x.shape[2]) * torch.ones(2, 1)),
    ),
    "open": (
        "",
        lambda x: sdpa(
            x[:, :, -1:], x, x, attn_mask=torch.arange(x.shape[2])[None] <= torch.arange(1) + x.shape[2] - 1
        ),
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_leaves(name: str) -> None:
    """What hides nothing is proven to; everything else is evaluated, since there is no band to compare with."""
    text, way = MASKS[name]
    (call,) = [node for node in rewritten(way).graph.nodes if op_name(node) == "sp.attention"]
    assert (named(call)["mask"], named(call)["score"]) == ("full", text)


def hidden(m: Small, ids: Tensor) -> Tensor:
    """Keys hidden by the data, for each row and each query."""
    x, z = m.e(ids), m.p[None, :3].expand(ids.shape[0], -1, -1)
    seen = (ids > 2)[:, None, None] & (torch.arange(ids.shape[1]) > torch.arange(3)[:, None])
    return sdpa(heads(z), heads(x), heads(m.l(x)), attn_mask=seen)


def biased(m: Small, ids: Tensor) -> Tensor:
    """A bias that trains and one of the data, between them a causal mask from the upper left."""
    x, z = m.e(ids), m.p[None, :3].expand(ids.shape[0], -1, -1)
    slopes = m.p[:3, :2].t().reshape(1, 2, 3, 1)
    x = x + sdpa(heads(z), heads(x), heads(x), attn_mask=slopes * ids[:, None, None]).sum()
    return sdpa(heads(z), heads(x), heads(m.l(x)), is_causal=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("forward", [hidden, biased], ids=lambda forward: forward.__name__)
def test_masks_are_exact(forward: Callable[[Small, Tensor], Any], strategy: str) -> None:
    check_forward(forward, strategy, lengths=(9, 7))


def added(m: Small, ids: Tensor) -> Tensor:
    """An additive mask of a few queries, as eager attention has it: no band, though it looks like one."""
    x, z = m.e(ids), m.p[None, :3].expand(ids.shape[0], -1, -1)
    seen = torch.arange(ids.shape[1]) <= torch.arange(3)[:, None]
    return sdpa(heads(z), heads(x), heads(m.l(x)), attn_mask=torch.where(seen, 0.0, -torch.inf).to(x.dtype))


def test_additive_masks_are_exact() -> None:
    check_forward(added, "striped", lengths=(9, 7))
