"""The training of `sp demo`: one step on all ranks, the same step on one device, and so on."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from sp.api import parallelize
from sp.models import Llama, LlamaConfig
from sp.show.words import table
from sp.testing import ProcessWorld

_PATIENCE_S = 600.0
ROUNDING = 1e-4  # relative, of float32 sums in another order, after some steps of training


@dataclass(frozen=True)
class Losses:
    step: int
    single: float
    ranks: float

    @property
    def difference(self) -> float:
        return abs(self.ranks - self.single) / abs(self.single)


@dataclass(frozen=True)
class Comparison:
    losses: tuple[Losses, ...]

    @property
    def same(self) -> bool:
        return all(each.difference <= ROUNDING for each in self.losses)

    def __str__(self) -> str:
        rows = [(f"{x.step}", f"{x.single:.6f}", f"{x.ranks:.6f}", f"{x.difference:.1e}") for x in self.losses]
        shown = table(rows, ("step", "one device", "sp", "difference"), right=(0, 1, 2, 3))
        verdict = "the same, up to rounding" if self.same else f"NOT the same: more than {ROUNDING:.0e} apart"
        return f"{shown}\n\n{verdict}"


def compare(world: int, length: int, strategy: str, steps: Iterable[int]) -> Iterator[Losses]:
    with ProcessWorld(1, threads_per_rank=world) as single, ProcessWorld(world) as ranks:
        for number in steps:
            alone = single.run(step, None, length, number, timeout_s=_PATIENCE_S)
            together = ranks.run(step, strategy, length, number, timeout_s=_PATIENCE_S)
            yield Losses(number, alone[0], together[0])


def step(strategy: str | None, length: int, number: int) -> float:
    """The loss of a step, which is taken.  strategy: None for the plain model."""
    model, optimizer = prepare(strategy)
    ids = batch(number, length)
    loss = model(ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@lru_cache(maxsize=1)
def prepare(strategy: str | None) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of bytes; kept by the process between steps."""
    torch.manual_seed(0)
    model = Llama(LlamaConfig(layers=2, width=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return model if strategy is None else parallelize(model, strategy, compile=False), optimizer


def batch(number: int, length: int) -> Tensor:
    """Some of Python's own source code, as bytes: int64 [1, length]."""
    text = (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_bytes()
    text *= -(-2 * length // len(text))
    start = number * 997 % (len(text) - length)
    return torch.tensor(list(text[start : start + length])).unsqueeze(0)
