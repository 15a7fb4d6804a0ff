"""Dropout on ranks: different on each, the same as in a world of one, reproducible from one seed."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import sp
from sp.testing import ProcessWorld, run_ranks

pytestmark = pytest.mark.usefixtures("one_capture")

BOUND = 1e-11
IDS = torch.randint(0, 11, (2, 13), generator=torch.Generator().manual_seed(0))


class Dropping(nn.Module):
    """Drops embeddings, scores of a pooled vector, a weight, and whole channels."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.l = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.first, self.last = nn.Dropout(0.3), nn.Dropout(0.5)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(self.e(ids))
        q = h.unflatten(-1, (2, 4)).transpose(1, 2)
        h = h + F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
        weight = F.dropout(self.l.weight, 0.1, self.training)
        h = F.dropout1d(h.mT, 0.2, self.training).mT + F.linear(h, weight)
        return h, self.last(h.mean(1)).square().sum()


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Dropping().double()


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def step(model: nn.Module) -> tuple[Tensor, ...]:
    """Outputs and all gradients of two calls, one after the other."""
    found: list[Tensor] = []
    for _ in range(2):
        model.zero_grad()
        hidden, loss = model(IDS)
        (loss + hidden.sin().sum()).backward()
        found += [hidden.detach(), loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return tuple(found)


def alone(model: nn.Module, seed: int = 3) -> tuple[Tensor, ...]:
    return step(sp.parallelize(copy.deepcopy(model), compile=False, generator=seeded(seed)))


@pytest.mark.parametrize("strategy", ["ring", "striped", "zigzag"])
@pytest.mark.parametrize("world", [2, 5])
def test_every_world_sees_the_noise_of_a_world_of_one(model: nn.Module, world: int, strategy: str) -> None:
    right = alone(model)

    def rank(group: dist.ProcessGroup) -> tuple[Tensor, ...]:
        mine = copy.deepcopy(model)
        return step(sp.parallelize(mine, strategy, mesh=group, compile=False, generator=seeded()))

    for found in run_ranks(world, rank):
        assert len(found) == len(right)
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b, rtol=BOUND, atol=BOUND)


def test_shards_in_and_shards_out(model: nn.Module) -> None:
    right_hidden, right_loss = sp.parallelize(copy.deepcopy(model), compile=False, generator=seeded())(IDS)

    def rank(group: dist.ProcessGroup) -> None:
        local: dict[str, Any] = {"inputs": "local", "outputs": {"0": "local"}}
        pmodel = sp.parallelize(copy.deepcopy(model), mesh=group, compile=False, generator=seeded(), **local)
        hidden, loss = pmodel(pmodel.layout.shard(IDS, 1))
        torch.testing.assert_close(hidden, pmodel.layout.shard(right_hidden, 1), rtol=BOUND, atol=BOUND)
        torch.testing.assert_close(loss, right_loss, rtol=BOUND, atol=BOUND)

    run_ranks(3, rank)


def test_calls_differ_and_seeds_differ(model: nn.Module) -> None:
    first, again, other = alone(model), alone(model), alone(model, seed=4)
    half = len(first) // 2
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[half])


def test_evaluation_has_no_noise(model: nn.Module) -> None:
    model.eval()
    hidden, loss = sp.parallelize(copy.deepcopy(model), compile=False)(IDS)
    right_hidden, right_loss = model(IDS)
    torch.testing.assert_close(hidden, right_hidden, rtol=BOUND, atol=BOUND)
    torch.testing.assert_close(loss, right_loss, rtol=BOUND, atol=BOUND)


def test_statistics_are_those_of_dropout() -> None:
    """The expectation is the value without dropout."""
    plain = nn.Sequential(nn.Embedding(11, 8), nn.Dropout(0.5))
    pmodel = sp.parallelize(plain, compile=False, generator=seeded())
    ids = torch.arange(11).repeat(1, 400)
    kept = (pmodel(ids) != 0).double()
    assert kept.mean().item() == pytest.approx(0.5, abs=0.01)
    assert pmodel(ids).mean().item() == pytest.approx(plain[0].weight.mean().item(), abs=0.05)


def train_from_one_seed(seed: int, compiled: bool) -> list[float]:
    """Three steps on this rank; torch's own generator, seeded as a script would."""
    torch.manual_seed(seed)
    pmodel: Any = sp.parallelize(Dropping().double(), compile=compiled)
    losses: list[float] = []
    for _ in range(3):
        hidden, loss = pmodel(IDS)
        total = loss + hidden.sin().sum()
        total.backward()
        losses.append(total.item())
    return [*losses, float(torch.rand(()))]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_reproducible_from_torchs_own_seed(world2: ProcessWorld, compiled: bool) -> None:
    """Processes have a generator each; all of them stay in step."""
    first, again, other = (world2.run(train_from_one_seed, seed, compiled) for seed in (0, 0, 1))
    assert first[0] == first[1]
    assert first == again
    assert first[0] != other[0]
