"""Peak memory of one training step: a rank against a single device, by length.

    python -m benchmarks memory --lengths 4096 8192 16384

Two figures, both from a process of its own, after a warm-up step on a short sequence:

* tensors: the most bytes of tensors alive at once during one forward and backward, counted by torch's profiler;
* resident: the highest resident size during the step minus that before it.  It adds what the C library's allocator
  keeps and fragments, which differs from run to run.

Weights, inputs and code are there before and do not count; the weights' gradients do.  The bound divides everything
over the ranks but those gradients, which every rank has whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import sp
from benchmarks.picture import Chart, Series
from benchmarks.resident import MIB, resident_bytes
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from sp.models import Llama, LlamaConfig
from sp.testing.memory import most_alive_bytes
from sp.testing.ranks import run_processes

SINGLE = "single device"


@dataclass(frozen=True)
class Options:
    lengths: tuple[int, ...] = (4096, 8192, 16384)
    strategies: tuple[str, ...] = ("striped", "zigzag", "ring")
    world: int = 2
    layers: int = 4
    width: int = 256
    compile: bool = False

    @property
    def config(self) -> LlamaConfig:
        return LlamaConfig(layers=self.layers, width=self.width, heads=8, kv_heads=4)


@dataclass(frozen=True)
class Job:
    """One training step to measure.  strategy: SINGLE trains the plain model."""

    strategy: str
    length: int
    config: LlamaConfig
    compile: bool


@dataclass(frozen=True)
class Found:
    """Bytes that one training step needs on the rank that needs most, and its loss."""

    tensors: int
    resident: int
    loss: float


def measure(options: Options, strategy: str, length: int) -> Found:
    job = Job(strategy, length, options.config, options.compile)
    ranks = run_processes(1 if strategy == SINGLE else options.world, measure_rank, job, timeout_s=1500)
    return Found(max(rank.tensors for rank in ranks), max(rank.resident for rank in ranks), ranks[0].loss)


def measure_rank(job: Job) -> Found:
    model = _make_model(job)
    _step(model, 64)
    before = resident_bytes("VmRSS")
    loss = _step(model, job.length)
    resident = resident_bytes("VmHWM") - before
    return Found(most_alive_bytes(lambda: _step(model, job.length)), resident, loss)


def _make_model(job: Job) -> nn.Module:
    torch.manual_seed(0)
    model = Llama(job.config)
    if job.strategy != SINGLE:
        return sp.parallelize(model, job.strategy, compile=job.compile)
    return torch.compile(model, dynamic=True) if job.compile else model


def _step(model: nn.Module, length: int) -> float:
    ids = torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return float(loss.detach())


def run(options: Options) -> Result:
    gradients = sum(weight.numel() * 4 for weight in Llama(options.config).parameters())
    found = {
        name: [measure(options, name, length) for length in options.lengths] for name in (SINGLE, *options.strategies)
    }
    bounds = [(gradients + (each.tensors - gradients) / options.world) / each.tensors for each in found[SINGLE]]
    rows: list[list[Cell]] = []
    for at, length in enumerate(options.lengths):
        whole = found[SINGLE][at]
        for name, by_length in found.items():
            each, bound = by_length[at], 1.0 if name == SINGLE else bounds[at]
            share = each.tensors / whole.tensors, bound, each.resident / MIB, each.resident / max(whole.resident, 1)
            rows.append([f"{length:,}", name, each.tensors / MIB, *share, each.loss])
    columns = {"tokens": "", "run": "", "tensors MiB": ".1f", "of single": ".3f", "bound": ".3f"}
    columns |= {"resident MiB": ".1f", "resident of single": ".3f", "loss": ".6f"}
    title = f"peak memory of a rank's training step, {options.world} ranks: {options.config}"
    return Result([Table(title, columns, rows)], [_chart(options, found, bounds)])


def _chart(options: Options, found: dict[str, list[Found]], bounds: list[float]) -> Chart:
    limits = [each.tensors * bound / MIB for each, bound in zip(found[SINGLE], bounds, strict=True)]
    series = [
        Series(name, [each.tensors / MIB for each in by_length], limits if name == "striped" else ())
        for name, by_length in found.items()
    ]
    title = f"Peak memory of a training step, a rank of {options.world}"
    return Chart("tensors", title, "tokens", "MiB of tensors (bound dashed)", options.lengths, series)


BENCHMARK = Benchmark(
    "peak memory of a rank's training step against a single device's, by length",
    Options(),
    Options(lengths=(128, 256), strategies=("striped",), layers=1, width=32),
    run,
)
