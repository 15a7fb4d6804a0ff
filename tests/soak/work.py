"""Steps of training of a tiny model, of many lengths, whose model and calls change now and then."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

import sp
from sp.models import GPT, GPTConfig
from tests.soak.readings import Reading

LENGTHS = (8, 13, 16, 21, 24, 29, 31)


@dataclass(frozen=True)
class Job:
    """every: steps between two readings.  fresh: whether each step has a length that none had before.
    leak: bytes that each step keeps, to see that it is found."""

    steps: int
    recaptures: int
    every: int
    compiled: bool = False
    fresh: bool = False
    strategy: str = "striped"
    leak: int = 0


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=61, max_length=1 << 16, layers=1, heads=2, width=16))


def soak(job: Job, model: nn.Module, group: dist.ProcessGroup | None = None) -> list[Reading]:
    """The readings of this rank, the first before the first step."""
    parallel = sp.parallelize(model, job.strategy, mesh=group, compile=job.compiled)
    turn, readings = max(job.steps // max(job.recaptures, 1), 1), list[Reading]()
    kept = list[bytes]()
    optimizer = torch.optim.SGD(parallel.parameters(), 1e-3)
    for step in range(job.steps):
        if step % job.every == 0:
            readings.append(_read(step, parallel, group))
        if job.recaptures and step and step % turn == 0:
            CHANGES[step // turn % len(CHANGES)](model, step)
            optimizer = torch.optim.SGD(parallel.parameters(), 1e-3)
        length = 8 + step if job.fresh else LENGTHS[step % len(LENGTHS)]
        _step(parallel, _ids(step, length), optimizer)
        kept += [bytes(job.leak)] if job.leak else []
    return [*readings, _read(job.steps, parallel, group)]


def _read(step: int, parallel: sp.ParallelModule, group: dist.ProcessGroup | None) -> Reading:
    """While no rank works: those that are threads have one memory."""
    group = group or dist.group.WORLD
    group.barrier().wait()
    reading = Reading.of(step, parallel)
    group.barrier().wait()
    return reading


def soak_process(job: Job) -> list[Reading]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are many captures, which is the point
        return soak(job, tiny())


def _step(parallel: sp.ParallelModule, ids: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    parallel(ids, labels=ids).loss.backward()
    optimizer.step()


def _ids(step: int, length: int) -> Tensor:
    return torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(step))


def _value(model: nn.Module, step: int) -> None:
    model.soaked = step


def _module(model: nn.Module, step: int) -> None:
    model.blocks[0].mlp, model.soaked = copy.deepcopy(model.blocks[0].mlp), step  # what is drawn, ranks draw in turn


def _mode(model: nn.Module, step: int) -> None:
    model.train(not model.training)
    model.soaked = step


CHANGES: tuple[Callable[[nn.Module, int], None], ...] = (_value, _module, _mode)
