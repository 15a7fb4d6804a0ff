"""A whole training step on ranks of one thread each against one process of as many threads.

    python -m benchmarks step --length 16384 --repeats 3

A Llama of 4 layers in float32, compiled (`--no-compile`: as it is): forward, loss, backward and the optimizer's step.
`sp, world 1` is `sp.parallelize` in a world of one rank, whose time over the plain model's is what the compiler's ops
cost.

The bound takes attention's share of the plain step as measured in the same repetitions, at most as fast as the plans
allow (`benchmarks/bounds.py`), and the rest as perfectly divided.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

import sp
from benchmarks.bounds import attention_bound, step_bound
from benchmarks.picture import Chart, Series
from benchmarks.ranks import SINGLE, Attention, time_attention
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from benchmarks.timing import Samples, in_turn
from sp.models.llama import Llama, LlamaConfig
from sp.testing import ProcessWorld

PLAIN, ALONE, ATTENTION = "plain", "sp, world 1", "attention alone"


@dataclass(frozen=True)
class Options:
    length: int = 16384
    world: int = 2
    strategies: tuple[str, ...] = ("ring", "striped", "zigzag", "ulysses")
    width: int = 512
    layers: int = 4
    repeats: int = 3
    compile: bool = True

    @property
    def config(self) -> LlamaConfig:
        heads = max(2, self.width // 64)
        return LlamaConfig(width=self.width, layers=self.layers, heads=heads, kv_heads=max(1, heads // 4))

    @property
    def attention(self) -> Attention:
        config = self.config
        return Attention(self.length, config.heads, config.kv_heads, config.head_width)


@dataclass(frozen=True)
class Job:
    """What is trained, and how: `strategy` is a name of STRATEGIES, or PLAIN."""

    strategy: str
    length: int
    config: LlamaConfig
    compile: bool


@lru_cache(maxsize=8)
def prepare(job: Job) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    """The model, its optimizer and its ids; kept by the process between calls."""
    torch.manual_seed(0)
    model = Llama(job.config)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, job.config.vocab_size, (1, job.length))
    if job.strategy != PLAIN:
        return sp.parallelize(model, job.strategy, compile=job.compile), optimizer, ids
    return torch.compile(model, dynamic=True) if job.compile else model, optimizer, ids


def step(job: Job) -> float:
    """Seconds of one training step of this rank."""
    model, optimizer, ids = prepare(job)
    start = time.perf_counter()
    optimizer.zero_grad()
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    return time.perf_counter() - start


def measure(options: Options) -> dict[str, Samples]:
    """Seconds of each variant, of its slowest rank, and of all layers' attention in the single process."""
    base = Job(PLAIN, options.length, options.config, options.compile)

    def slowest(where: ProcessWorld, strategy: str) -> float:
        return max(where.run(step, replace(base, strategy=strategy), timeout_s=1800))

    def attention() -> float:
        (seconds,) = single.run(time_attention, SINGLE, options.attention, True, timeout_s=1200)
        return seconds * options.layers

    with ProcessWorld(1, threads_per_rank=options.world) as single, ProcessWorld(options.world) as ranks:
        variants: dict[str, Callable[[], float]] = {PLAIN: partial(slowest, single, PLAIN), ATTENTION: attention}
        variants |= {ALONE: partial(slowest, single, "striped")}
        variants |= {name: partial(slowest, ranks, name) for name in options.strategies}
        return in_turn(variants, options.repeats, warmups=2)


def run(options: Options) -> Result:
    found = measure(options)
    share = found.pop(ATTENTION) / found[PLAIN]
    rows: list[list[Cell]] = []
    for name, seconds in found.items():
        over_ring = None if name in (PLAIN, ALONE) or "ring" not in found else found["ring"] / seconds
        named = f"plain, {options.world} threads" if name == PLAIN else name
        rows.append([named, seconds, found[PLAIN] / seconds, _bound(options, name, share.median), over_ring])
    columns = {"": "", "seconds": ".2f", "speed / plain": ".3f", "bound": ".3f", "speed / ring": ".3f"}
    title = f"a training step of {options.length:,} tokens on {options.world} ranks: {options.config}"
    extra = found[ALONE] / found[PLAIN]
    notes = [
        f"Attention takes {share:.3f} of the plain step.",
        f"sp at world 1 takes {extra:.3f} of the plain model's time.",
    ]
    return Result([Table(title, columns, rows)], [_chart(options, found, share.median)], notes)


def _bound(options: Options, name: str, share: float) -> float | None:
    if name in (PLAIN, ALONE):
        return 1.0
    job = options.attention
    return step_bound(share, attention_bound(name, job.length, options.world, job.heads, job.kv_heads))


def _chart(options: Options, found: dict[str, Samples], share: float) -> Chart:
    names = list(found)
    figures = [found[PLAIN] / found[name] for name in names]
    series = Series("speed / plain", figures, [_bound(options, name, share) for name in names])
    title = f"Training step of {options.length:,} tokens, {options.world} ranks"
    return Chart("speed", title, "", "speed / plain model (bound dashed)", names, [series])


BENCHMARK = Benchmark(
    "a whole training step of a Llama, strategies against the plain model",
    Options(),
    Options(length=48, width=64, layers=1, repeats=1, compile=False),
    run,
)
