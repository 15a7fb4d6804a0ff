"""What the compiler itself takes by the number of ranks: nothing may grow with it but what has one number per rank.

    python -m benchmarks worlds --layers 126 --worlds 8 1024 4096

A Llama on the meta device is inspected, so that nothing is computed and no memory is taken.  Times are those of the
processor, which a busy machine changes little.  The bounds are the times of the smallest world; a plan's is a second,
the report's a linear growth with the ranks.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

import sp
from benchmarks.picture import Chart, Series
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from sp.mask import CAUSAL
from sp.models import Llama, LlamaConfig
from sp.plan import Plan, make_plan
from sp.show import Report
from sp.strategy import find_strategy

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    worlds: tuple[int, ...] = (8, 64, 1024, 4096)
    strategies: tuple[str, ...] = ("striped", "zigzag", "ring")
    length: int = 10_485_760
    layers: int = 4


def llama(layers: int) -> Llama:
    """Llama 3's 405B, of so many layers, on the meta device."""
    sizes = LlamaConfig(128256, layers, heads=128, kv_heads=8, width=16384, mlp_ratio=3.25, rope_theta=500_000.0)
    with torch.device("meta"):
        return Llama(sizes).bfloat16()


def inspect(options: Options, world: int, strategy: str) -> Report:
    with torch.device("meta"):
        ids = torch.zeros(1, options.length, dtype=torch.long)
    return sp.inspect(llama(options.layers), (ids,), {"labels": ids}, strategy=strategy, world_size=world)


def planned(options: Options, world: int, strategy: str) -> Plan:
    """The plan of the rank in the middle, worked out."""
    make_plan.cache_clear()
    plan = make_plan(find_strategy(strategy).layout, CAUSAL, options.length, world, world // 2)
    assert plan.area
    return plan


def timed(run: Callable[[], T]) -> tuple[T, float]:
    begin = time.process_time()
    found = run()
    return found, time.process_time() - begin


def run(options: Options) -> Result:
    timed(partial(inspect, Options(length=64, layers=1), 2, "striped"))  # imports and caches
    rows: list[list[Cell]] = []
    plans: dict[str, list[float]] = {strategy: [] for strategy in options.strategies}
    for strategy in options.strategies:
        base: list[float] = []
        for world in options.worlds:
            report, inspecting = timed(partial(inspect, options, world, strategy))
            _, printing = timed(lambda report=report: (str(report), report.plan_grid()))
            plan, planning = timed(partial(planned, options, world, strategy))
            base, ratio = base or [inspecting, printing], world / options.worlds[0]
            size = len(pickle.dumps(plan)) / 1024
            plans[strategy].append(1e3 * planning)
            report_row = [printing, base[1] * ratio]
            rows.append([strategy, world, inspecting, base[0], *report_row, 1e3 * planning, 1e3, size])
    columns = {"strategy": "", "world": "", "inspect s": ".2f", "bound s": ".2f", "report s": ".2f", "linear s": ".2f"}
    columns |= {"plan ms": ".1f", "bound ms": ".0f", "plan KiB": ".1f"}
    title = f"Llama 405B of {options.layers} layers, {options.length:,} tokens"
    series = [Series(name, figures) for name, figures in plans.items()]
    chart = Chart("plans", "The plan of one rank", "ranks", "milliseconds", options.worlds, series)
    return Result([Table(title, columns, rows)], [chart])


BENCHMARK = Benchmark(
    "time of the compiler and size of a plan, by the number of ranks",
    Options(),
    Options(worlds=(2, 64), strategies=("zigzag",), length=4096, layers=1),
    run,
)
