"""Ops of other models than ours, in whole programs on ranks: every output and gradient equal to the single device's."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sp
from sp.testing.compare import errors_between, run_once
from sp.testing.ranks import run_ranks
from tests.passes.programs import Small

pytestmark = pytest.mark.usefixtures("one_capture")


def complex_rotation(m: Small, ids: Tensor, labels: Tensor) -> Any:
    """Positions as in Llama's reference code: pairs of features as complex numbers."""
    h = m.l(m.e(ids))
    angles = torch.outer(torch.arange(ids.shape[1], dtype=h.dtype), torch.full((2,), 1 / 3, dtype=h.dtype))
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(h.reshape(*h.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * turns.view(1, ids.shape[1], 2)).flatten(2).type_as(h)
    return F.cross_entropy(turned.mT, labels), turned


def linear_attention(m: Small, ids: Tensor, labels: Tensor) -> Any:
    """Keys meet values once, summed over all tokens: a contraction along the sequence."""
    h = m.e(ids)
    q, k, v = m.l(h).softmax(-1), m.l(h).exp(), h.sin()
    state = torch.einsum("bsd,bse->bde", k, v)
    total = k.sum(1, keepdim=True)
    out = (q @ state) / (q * total).sum(-1, keepdim=True)
    return F.mse_loss(out, h), out


def balanced_experts(m: Small, ids: Tensor, labels: Tensor) -> Any:
    """A router's top choice, how many tokens each expert gets, and the loss that evens them out."""
    h = m.e(ids).flatten(0, 1)
    chances = m.l(h).softmax(-1)
    weights, chosen = chances.topk(2, -1)
    load = F.one_hot(chosen, 4).to(h.dtype).mean((0, 1))
    mixed = torch.zeros_like(chances).scatter_add(-1, chosen, weights) @ m.p[:4]
    return (load * chances.mean(0)).sum() * 4 + F.smooth_l1_loss(mixed, h), mixed


def looked_up(m: Small, ids: Tensor, labels: Tensor) -> Any:
    """Tables read by index, and losses whose classes weigh."""
    h = m.e.weight[ids] + m.p[ids.clamp(max=9)] + m.p.index_select(0, labels.clamp(min=0).flatten()).view_as(m.e(ids))
    scores = torch.baddbmm(m.l.bias, m.l(h), m.l.weight.expand(ids.shape[0], -1, -1))
    rates = 1 + torch.arange(4, dtype=h.dtype)
    smooth = F.cross_entropy(scores.mT, labels, rates, label_smoothing=0.1)
    return smooth + F.nll_loss(scores.log_softmax(-1).flatten(0, 1), labels.flatten(), rates), scores


def picked_apart(m: Small, ids: Tensor, labels: Tensor) -> Any:
    """Ops along the features, with the sequence in the way."""
    h = m.l(m.e(ids))
    a, b = h.tensor_split(2, -1)
    best, where = torch.cat([a, b.flip(-1)], -1).sort(-1)
    wide = torch.hstack([best.mT, h.mT]).movedim(1, 2)
    picked = wide[..., torch.tensor([7, 0, 3])].gather(-1, where[..., :3].clamp(max=2))
    normed = F.normalize(picked, dim=-1) * h.std(-1, keepdim=True) + h.logsumexp(-1, keepdim=True)
    return F.binary_cross_entropy_with_logits(normed, picked.sigmoid()), normed.repeat_interleave(2, 1)


WAYS: dict[str, Callable[..., Any]] = {
    way.__name__: way for way in (complex_rotation, linear_attention, balanced_experts, looked_up, picked_apart)
}


class Model(nn.Module):
    def __init__(self, way: Callable[..., Any]) -> None:
        super().__init__()
        self.small = Small(way)

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        loss, output = self.small(ids, labels)
        return {"loss": loss, "output": output}


@pytest.mark.parametrize("name", WAYS)
def test_program_is_exact(name: str) -> None:
    """In the least regular layout; the oracle has tried every rule in all of them."""
    torch.manual_seed(0)
    model = Model(WAYS[name]).double()
    calls = []
    for length in (12, 7):
        ids, labels = torch.randint(0, 11, (2, length)), torch.randint(0, 4, (2, length))
        labels[0, : length // 2] = -100
        calls.append((ids, labels))
    references = [run_once(model, call, {}) for call in calls]

    def rank(group: Any) -> list[Any]:
        parallel = sp.parallelize(copy.deepcopy(model), "zigzag", mesh=group, compile=False)
        runs = [run_once(parallel, call, {}) for call in calls]
        return [errors_between(run, right) for run, right in zip(runs, references, strict=True)]

    for found in run_ranks(3, rank):
        for errors in found:
            assert errors.within(1e-11), errors
