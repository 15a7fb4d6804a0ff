"""What works along the sequence, over real gloo processes and under torch.compile: outputs and every gradient."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sp
from sp.testing import ProcessWorld
from sp.testing.compare import relative_error

BOUND = 1e-11


def attended(q: Tensor, k: Tensor, causal: bool = False) -> Tensor:
    """Two heads of four."""
    q, k = (x.unflatten(-1, (2, 4)).transpose(1, 2) for x in (q, k))
    return F.scaled_dot_product_attention(q, k, k, is_causal=causal).transpose(1, 2).flatten(2)


class Everything(nn.Module):
    """An encoder with a class token, a decoder with a short convolution and a token shift, and what pools them."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.p, self.l = nn.Embedding(11, 8), nn.Embedding(64, 8), nn.Linear(8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.conv = nn.Conv1d(8, 8, 3, groups=8, padding=2)

    def forward(self, source: Tensor, target: Tensor, last: Tensor) -> dict[str, Tensor]:
        x = torch.cat([self.cls.expand(source.shape[0], -1, -1), self.e(source)], 1)
        x = x + self.p(torch.arange(source.shape[1] + 1))
        x = x + attended(self.l(x), x)
        y = self.e(target)
        y = y + self.conv(y.mT)[..., : target.shape[1]].mT + F.pad(y, (0, 0, 1, -1))
        y = y + attended(self.l(y), y, causal=True)
        y = y + attended(self.l(y), x)
        y[:, 0] = 0.5
        loss = F.cross_entropy(self.l(y)[:, :-1].flatten(0, 1), target[:, 1:].flatten() % 8, label_smoothing=0.1)
        picked = y[torch.arange(target.shape[0]), last]
        pooled = (y.softmax(1) * y).sum(1) + y.amax(1) + x[:, 0] + picked
        return {"loss": loss + pooled.square().mean(), "states": y, "pooled": pooled}


def compare(lengths: list[tuple[int, int]], strategy: str, compiled: bool) -> float:
    """The largest relative error on this rank, over calls of several lengths through one module."""
    torch.manual_seed(0)
    plain = Everything().double()
    dims = {"source": 1, "target": 1}
    parallel = sp.parallelize(copy.deepcopy(plain), strategy, sequence_dim=dims, compile=compiled)
    worst = 0.0
    for source, target in lengths:
        generator = torch.Generator().manual_seed(source)
        inputs = [torch.randint(0, 11, (3, size), generator=generator) for size in (source, target)]
        last = torch.tensor([1, -1, target // 2])
        right, found = plain(*inputs, last), parallel(*inputs, last)
        for model, result in ((plain, right), (parallel, found)):
            model.zero_grad()
            (result["loss"] + result["states"].sin().sum()).backward()
        worst = max([worst, *(relative_error(found[name], right[name]) for name in right)])
        pairs = zip(parallel.parameters(), plain.parameters(), strict=True)
        worst = max([worst, *(relative_error(mine.grad, theirs.grad) for mine, theirs in pairs)])
    return worst


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("ring", "zigzag")]


@pytest.mark.parametrize("strategy", ["striped", *SLOW])
def test_on_two_processes(world2: ProcessWorld, strategy: str) -> None:
    assert max(world2.run(compare, [(9, 6), (4, 13), (7, 3)], strategy, False)) < BOUND


@pytest.mark.slow
def test_on_four_processes(world4: ProcessWorld) -> None:
    assert max(world4.run(compare, [(9, 6), (4, 13)], "striped", False)) < BOUND


@pytest.mark.parametrize("strategy", ["zigzag", "striped"])
@pytest.mark.slow
def test_compiled(world2: ProcessWorld, strategy: str) -> None:
    assert max(world2.run(compare, [(9, 6), (4, 13)], strategy, True, timeout_s=300.0)) < BOUND
