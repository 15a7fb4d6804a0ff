"""Peak memory of a rank by length and number of ranks, to lengths at which a step takes minutes.

    python -m benchmarks long --lengths 8192 16384 32768 65536 131072 --worlds 1 2 4

A small byte-level Llama, one sequence of Python's own sources, one training step; a world of one is the plain model in
as many threads as the others have ranks.  `checkpoint` recomputes the blocks of all of them in backward, the plain
model's too.  `tensors` and `resident` are those of `benchmarks.memory`, of one and the same step.  The bound
divides all but the weights' gradients by the number of ranks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import sp
from benchmarks.picture import Chart, Series
from benchmarks.resident import MIB, forget_peak, resident_bytes
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from examples.bytes_data import VOCABULARY, PythonSources
from sp.models import Llama, LlamaConfig
from sp.testing.memory import most_alive_bytes
from sp.testing.ranks import run_processes


@dataclass(frozen=True)
class Options:
    lengths: tuple[int, ...] = (8192, 16384, 32768, 65536, 131072)
    worlds: tuple[int, ...] = (1, 2, 4)
    strategy: str = "striped"
    layers: int = 2
    width: int = 128
    heads: int = 2
    checkpoint: bool = True

    @property
    def config(self) -> LlamaConfig:
        return LlamaConfig(VOCABULARY, layers=self.layers, width=self.width, heads=self.heads, kv_heads=self.heads)


@dataclass(frozen=True)
class Found:
    """Of one training step, on the rank that needs most."""

    tensors: int
    resident: int
    seconds: float
    loss: float


def measure(options: Options, world: int, length: int) -> Found:
    threads = min(2, max(options.worlds)) if world == 1 else 1
    ranks = run_processes(world, measure_rank, options, world, length, timeout_s=4 * 3600, threads_per_rank=threads)
    most = [max(getattr(rank, field) for rank in ranks) for field in ("tensors", "resident", "seconds")]
    return Found(*most, ranks[0].loss)


def measure_rank(options: Options, world: int, length: int) -> Found:
    model, text, losses = _make_model(options, world), PythonSources(), list[float]()
    _step(model, text.batch(0, 1, 64))
    ids, before, start = text.batch(0, 1, length), resident_bytes("VmRSS"), time.perf_counter()
    forget_peak()
    tensors = most_alive_bytes(lambda: losses.append(_step(model, ids)))
    return Found(tensors, resident_bytes("VmHWM") - before, time.perf_counter() - start, losses[0])


def _make_model(options: Options, world: int) -> nn.Module:
    torch.manual_seed(0)
    model = Llama(options.config)
    if world > 1:
        outputs = {"logits": "none"}
        return sp.parallelize(model, options.strategy, compile=False, checkpoint=options.checkpoint, outputs=outputs)
    for at, block in enumerate(model.blocks):
        model.blocks[at] = checkpoint_wrapper(block) if options.checkpoint else block
    return model


def _step(model: nn.Module, ids: Tensor) -> float:
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return float(loss.detach())


def run(options: Options) -> Result:
    gradients = sum(weight.numel() * 4 for weight in Llama(options.config).parameters())
    found = {world: [measure(options, world, length) for length in options.lengths] for world in options.worlds}
    rows: list[list[Cell]] = []
    for at, length in enumerate(options.lengths):
        whole = found[options.worlds[0]][at]
        for world, by_length in found.items():
            each = by_length[at]
            bound = (gradients + (whole.tensors - gradients) * options.worlds[0] / world) / whole.tensors
            shares = each.tensors / whole.tensors, bound, each.resident / MIB
            name = "single device" if world == 1 else f"{world} ranks"
            rows.append([f"{length:,}", name, each.tensors / MIB, *shares, each.seconds, each.loss])
    columns = {"tokens": "", "run": "", "tensors MiB": ",.0f", "of the first": ".3f", "bound": ".3f"}
    columns |= {"resident MiB": ",.0f", "seconds": ",.0f", "loss": ".6f"}
    how = "blocks recomputed" if options.checkpoint else "all activations kept"
    title = f"peak memory of a rank's training step, {options.strategy}, {how}: {options.config}"
    series = [Series(f"{world} ranks", [each.tensors / MIB for each in found[world]]) for world in options.worlds]
    chart = Chart("tensors", "Peak memory of a rank by length", "tokens", "MiB of tensors", options.lengths, series)
    return Result([Table(title, columns, rows)], [chart])


BENCHMARK = Benchmark(
    "peak memory of a rank by length and number of ranks, to lengths at which a step takes minutes",
    Options(),
    Options(lengths=(65, 128), worlds=(1, 2), layers=1, width=32),
    run,
)
