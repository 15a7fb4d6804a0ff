"""Training steps on ranks in processes of their own, timed in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from sp.api import parallelize
from sp.cli.subject import Subject, Wish
from sp.errors import InputError
from sp.show.words import table
from sp.testing import ProcessWorld

_PATIENCE_S = 1800.0


@dataclass(frozen=True)
class Timing:
    """Seconds of each repetition, of the slowest rank.  strategy: None for the plain model in one process."""

    strategy: str | None
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def as_dict(self) -> dict[str, Any]:
        return {"strategy": self.strategy, "seconds": list(self.seconds), "median": self.median}

    @staticmethod
    def table(timings: Sequence[Timing]) -> str:
        """The first is what the others are held against, within each repetition."""
        rows = [timing._row(timings[0]) for timing in timings]
        return table(rows, ("", "seconds", "least", "most", "speed / plain"), right=(1, 2, 3, 4))

    def _row(self, plain: Timing) -> tuple[str, ...]:
        speed = statistics.median(a / b for a, b in zip(plain.seconds, self.seconds, strict=True))
        numbers = (self.median, min(self.seconds), max(self.seconds), speed)
        return self.strategy or "plain, one process", *(f"{number:.3f}" for number in numbers)


@dataclass(frozen=True)
class Job:
    """What a process trains; `strategy` None leaves the model plain."""

    wish: Wish
    strategy: str | None
    compiled: bool


def time_steps(
    wish: Wish, strategies: Sequence[str | None], world: int, repeats: int, compiled: bool, tick: Callable[[], object]
) -> list[Timing]:
    """Each strategy on `world` ranks of one thread, None in one process of as many.  One more repetition warms up.

    tick: called before every step."""
    found: dict[str | None, list[float]] = {strategy: [] for strategy in strategies}
    with ProcessWorld(1, threads_per_rank=world) as single, ProcessWorld(world) as ranks:
        for _ in range(repeats + 1):
            for strategy in strategies:
                tick()
                where = single if strategy is None else ranks
                seconds = where.run(step, Job(wish, strategy, compiled), timeout_s=_PATIENCE_S)
                found[strategy].append(max(seconds))
    return [Timing(strategy, tuple(seconds[1:])) for strategy, seconds in found.items()]


def step(job: Job) -> float:
    """Seconds of one training step of this rank."""
    model, optimizer, subject = prepare(job)
    start = time.perf_counter()
    optimizer.zero_grad()
    loss_of(model(*subject.args, **subject.kwargs)).backward()
    optimizer.step()
    return time.perf_counter() - start


@lru_cache(maxsize=16)
def prepare(job: Job) -> tuple[nn.Module, torch.optim.Optimizer, Subject]:
    """Kept by the process between calls."""
    subject = job.wish.load()
    optimizer = torch.optim.AdamW(subject.model.parameters())
    if job.strategy is not None:
        return parallelize(subject.model, job.strategy, compile=job.compiled), optimizer, subject
    if job.compiled:
        subject.model.compile()
    return subject.model, optimizer, subject


def loss_of(output: Any) -> Tensor:
    """`output.loss`, or the mean of what the output begins with."""
    loss = getattr(output, "loss", None)
    first = output if loss is None else loss
    while not isinstance(first, Tensor) and first:
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    if not isinstance(first, Tensor) or not first.is_floating_point():
        raise InputError("the model's output has no loss and does not begin with a floating tensor")
    return first.mean()
