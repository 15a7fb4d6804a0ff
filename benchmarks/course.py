"""The course of a training: losses of all steps and parameters now and then, of one device or of ranks.

A small Llama learns Python's own sources, byte by byte.  Every run sees the same batches in the same order; what
differs is how sums are rounded, and in a run that is a yardstick that alone:

    ulp     each parameter begins one unit in the last place further up
    order   the rows of each batch are turned about: the same sums in another order
    math    attention is written out (SDPBackend.MATH) instead of FlashAttention
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import sp
from sp.models import Llama, LlamaConfig
from sp.testing import run_ranks
from sp.testing.ranks import run_processes

PLAIN, TRUTH = "single device", "float64"
YARDSTICKS = ("ulp", "order", "math")


@dataclass(frozen=True)
class Training:
    """dtype: of the arithmetic; bfloat16 is autocast over float32 parameters.  looks: after which steps parameters are
    kept.  length: tokens of a row, which need not divide the worlds."""

    steps: int = 1000
    looks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
    length: int = 130
    batch: int = 4
    layers: int = 2
    width: int = 64
    rate: float = 1e-3

    def model(self) -> Llama:
        torch.manual_seed(0)
        return Llama(LlamaConfig(layers=self.layers, width=self.width))

    def batches(self) -> Iterator[Tensor]:
        """[batch, length] each."""
        text, generator = _text(), torch.Generator().manual_seed(0)
        for _ in range(self.steps):
            begins = torch.randint(len(text) - self.length, (self.batch,), generator=generator)
            yield torch.stack([text[begin : begin + self.length] for begin in begins.tolist()])


@dataclass(frozen=True)
class Course:
    """losses: of each step.  parameters: all of them in float64, flat, after each of the looks."""

    losses: list[float]
    parameters: list[Tensor]


def _text() -> Tensor:
    """The modules of Python's own library that lie at its top, one after another: bytes [n]."""
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in sources)), dtype=torch.uint8).long()


def single(training: Training, dtype: str, way: str = "") -> Course:
    """On one device; way: one of YARDSTICKS, or nothing out of the ordinary."""
    model = training.model()
    if dtype == TRUTH:
        model.double()
    if way == "ulp":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.nextafter(parameter, torch.tensor(torch.inf)))
    with sdpa_kernel(SDPBackend.MATH) if way == "math" else nullcontext():
        return train(model, model, training, dtype, turned=way == "order")


def threads(training: Training, dtype: str, strategy: str, world: int) -> list[Course]:
    """Of each rank, in a world of threads."""
    models = [copy.deepcopy(training.model()) for _ in range(world)]

    def rank(group: dist.ProcessGroup) -> Course:
        return _parallel(models[group.rank()], training, dtype, strategy, group)

    return run_ranks(world, rank, timeout_s=3600)


def processes(training: Training, dtype: str, strategy: str, world: int) -> list[Course]:
    """Of each rank, in a world of processes."""
    return run_processes(world, _process, training, dtype, strategy, timeout_s=3600)


def _process(training: Training, dtype: str, strategy: str) -> Course:
    return _parallel(training.model(), training, dtype, strategy, None)


def _parallel(
    model: nn.Module, training: Training, dtype: str, strategy: str, group: dist.ProcessGroup | None
) -> Course:
    return train(sp.parallelize(model, strategy, mesh=group, compile=False), model, training, dtype)


def train(run: nn.Module, model: nn.Module, training: Training, dtype: str, turned: bool = False) -> Course:
    """`run` is `model`, or it parallelized."""
    optimizer, losses, parameters = torch.optim.AdamW(model.parameters(), training.rate), list[float](), list[Tensor]()
    for step, ids in enumerate(training.batches(), 1):
        given = ids.flip(0) if turned else ids
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = run(given, labels=given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step in training.looks:
            parameters.append(flat(model))
    return Course(losses, parameters)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])


def distances(course: Course, other: Course) -> list[float]:
    """Of the parameters, relative to those of `other`, at each look."""
    pairs = zip(course.parameters, other.parameters, strict=True)
    return [float((mine - theirs).norm() / theirs.norm()) for mine, theirs in pairs]


def gaps(course: Course, other: Course, looks: Sequence[int]) -> list[float]:
    """The largest |difference of losses| of the steps up to each look, from the look before."""
    begins = (0, *looks[:-1])
    apart = [abs(mine - theirs) for mine, theirs in zip(course.losses, other.losses, strict=True)]
    return [max(apart[begin:end]) for begin, end in zip(begins, looks, strict=True)]
