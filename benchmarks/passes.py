"""Time of the passes against time of the capture, for a Llama of growing depth.

    python -m benchmarks passes --layers 4 8 16 32

Nothing runs and nothing is compiled.  The bound of the passes is linear growth from the smallest depth.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import torch

from benchmarks.picture import Chart, Series
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from benchmarks.timing import Samples
from sp.models import Llama, LlamaConfig
from sp.passes import pipeline
from sp.passes.capture import capture
from sp.passes.manager import run_passes
from sp.program import Program
from sp.request import Request
from sp.strategy import find_strategy


@dataclass(frozen=True)
class Options:
    layers: tuple[int, ...] = (4, 8, 16, 32)
    strategy: str = "striped"
    repeats: int = 3


@dataclass(frozen=True)
class Found:
    """nodes: captured.  capture: seconds of it.  passes: seconds of each, by name."""

    nodes: int
    capture: float
    passes: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.passes.values())


def measure(layers: int, strategy: str) -> Found:
    model = Llama(LlamaConfig(layers=layers, width=64, heads=4, kv_heads=2, gqa="repeat_kv"))
    ids = torch.zeros(2, 256, dtype=torch.long)
    request = Request.of(model, (ids,), {"labels": ids}, 1)
    begin = time.perf_counter()
    program, _ = capture(model, request.call, request.tensors, sequence_dim=1, strategy=find_strategy(strategy))
    captured = time.perf_counter()
    stages = [("", captured)]

    def observe(stage: str, _: Program) -> None:
        stages.append((stage, time.perf_counter()))

    run_passes(program, pipeline(), observe)
    spent = {name: at - before for (_, before), (name, at) in pairwise(stages)}
    return Found(len(program.graph.nodes), captured - begin, spent)


def run(options: Options) -> Result:
    measure(1, options.strategy)  # imports and caches
    found = {layers: [measure(layers, options.strategy) for _ in range(options.repeats)] for layers in options.layers}
    captures = {layers: Samples.of(each.capture for each in runs) for layers, runs in found.items()}
    totals = {layers: Samples.of(each.total for each in runs) for layers, runs in found.items()}
    first = options.layers[0]
    rows: list[list[Cell]] = []
    for layers, (one, *_) in found.items():
        linear, slowest = totals[first].median * layers / first, max(one.passes, key=lambda name: one.passes[name])
        share = totals[layers] / captures[layers]
        row = [layers, one.nodes, captures[layers], totals[layers], linear, share]
        rows.append([*row, f"{slowest}, {one.passes[slowest]:.2f} s"])
    columns = {"layers": "", "nodes": "", "capture s": ".2f", "passes s": ".2f", "linear s": ".2f"}
    columns |= {"passes / capture": ".2f", "slowest pass": ""}
    series = [
        Series("capture", list(captures.values())),
        Series("passes", list(totals.values()), [totals[first].median * layers / first for layers in found]),
    ]
    chart = Chart("seconds", "Capture and passes", "layers", "seconds (linear growth dashed)", options.layers, series)
    return Result([Table(f"a Llama, {options.strategy}", columns, rows)], [chart])


BENCHMARK = Benchmark(
    "time of all passes against time of the capture, by depth",
    Options(),
    Options(layers=(1, 2), repeats=1),
    run,
)
