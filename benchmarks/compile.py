"""What a person waits for before the first step: capture, passes, torch.compile; and whether other lengths wait again.

    python -m benchmarks compile --layers 4 8

Each model in a process of its own, with torch's caches of compiled code off.  `first step` is the whole first call and
its backward, as a loop sees it: capture, passes, agreement and compilation.  The bound is the same of the plain model
under `torch.compile(dynamic=True)`; what sp adds is capture and passes.  Another length must compile no graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch._dynamo.utils import counters

import sp
from benchmarks.passes import measure as measure_passes
from benchmarks.picture import Chart, Series
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from sp.models import Llama, LlamaConfig
from sp.testing import run_processes

PLAIN = "plain"


@dataclass(frozen=True)
class Options:
    layers: tuple[int, ...] = (4, 8)
    strategies: tuple[str, ...] = (PLAIN, "striped")
    world: int = 2
    width: int = 128
    length: int = 512
    backend: str = "inductor"


@dataclass(frozen=True)
class Job:
    strategy: str
    config: LlamaConfig
    length: int
    backend: str


@dataclass(frozen=True)
class Found:
    """Seconds of one step each, and how many graphs were compiled in it."""

    first: float
    second: float
    other: float
    first_graphs: int
    other_graphs: int


def measure(job: Job) -> Found:
    """On one rank: a first step, a second one, and one of another length that is odd, all with backward."""
    torch.compiler.config.force_disable_caches = True
    torch.manual_seed(0)
    model = Llama(job.config)
    if job.strategy == PLAIN:
        made = torch.compile(model, dynamic=True, backend=job.backend)
    else:
        made = sp.parallelize(model, job.strategy, compile={"backend": job.backend})

    def step(length: int) -> None:
        ids = torch.randint(0, job.config.vocab_size, (1, length))
        made(ids, labels=ids).loss.backward()

    first, first_graphs = _watched(partial(step, job.length))
    second, _ = _watched(partial(step, job.length))
    other, other_graphs = _watched(partial(step, job.length + 37))
    return Found(first, second, other, first_graphs, other_graphs)


def _watched(run: Callable[[], None]) -> tuple[float, int]:
    """Seconds, and graphs that torch.compile has made meanwhile."""
    before, start = counters["stats"]["unique_graphs"], time.perf_counter()
    run()
    return time.perf_counter() - start, counters["stats"]["unique_graphs"] - before


def run(options: Options) -> Result:
    rows: list[list[Cell]] = []
    firsts: dict[str, list[float]] = {name: [] for name in options.strategies}
    for layers in options.layers:
        config = LlamaConfig(layers=layers, width=options.width, heads=4, kv_heads=2)
        analysis = measure_passes(layers, "striped")
        for name in options.strategies:
            job = Job(name, config, options.length, options.backend)
            ranks = run_processes(1 if name == PLAIN else options.world, measure, job, timeout_s=1800)
            slowest = max(ranks, key=lambda rank: rank.first)
            firsts[name].append(slowest.first)
            own = [None, None] if name == PLAIN else [analysis.capture, analysis.total]
            steps = [slowest.first, firsts[PLAIN][-1] if PLAIN in firsts else None, slowest.second, slowest.other]
            rows.append([layers, name, *own, *steps, slowest.first_graphs, slowest.other_graphs])
    columns = {"layers": "", "run": "", "capture s": ".2f", "passes s": ".2f", "first step s": ".1f", "bound s": ".1f"}
    columns |= {"second step s": ".2f", "other length s": ".2f", "graphs": "", "recompiled": ""}
    title = f"before the first step, {options.world} ranks, {options.length} tokens, width {options.width}"
    series = [Series(name, seconds) for name, seconds in firsts.items()]
    chart = Chart("first", "First training step, compiling", "layers", "seconds", options.layers, series)
    return Result([Table(title, columns, rows)], [chart])


BENCHMARK = Benchmark(
    "capture, passes and torch.compile before the first step; recompilations at another length",
    Options(),
    Options(layers=(1,), width=32, length=32, backend="aot_eager"),
    run,
)
