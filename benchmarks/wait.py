"""Time that ranks wait for transfers, against the time of a step: what overlap leaves exposed.

    python -m benchmarks wait --lengths 4096 8192 16384

Attention in float32, forward and backward apart, on ranks of one thread each.  Waiting is the time inside of `wait` of
all exchanges, on the rank that waits most; it is compared with the time of the whole pass, which for ring transports
has as many steps as there are ranks.  `transfer` is one exchange of a step's keys and values with nothing to hide
behind, measured in the same repetition; where computing takes at least 5 times as long, waiting must be at most 5 %.
Waiting for a rank that has more work counts too: plain `ring` shows it in backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.picture import Chart, Series
from benchmarks.ranks import Attention, parallel_attention, rank_operands
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from benchmarks.timing import Samples, in_turn
from benchmarks.watch import Watch, watched
from sp.runtime.comm import post_exchange
from sp.runtime.world import find_world
from sp.testing import ProcessWorld

WAYS = ("forward", "backward")
BOUND = 0.05
ENOUGH = 5  # times longer than a transfer


@dataclass(frozen=True)
class Options:
    lengths: tuple[int, ...] = (4096, 8192, 16384)
    strategies: tuple[str, ...] = ("striped", "zigzag", "ring")
    world: int = 2
    heads: int = 8
    kv_heads: int = 8
    size: int = 64
    repeats: int = 5


@dataclass(frozen=True)
class Pass:
    """Seconds of one direction on one rank, and how many of them it waited."""

    seconds: float
    waited: float

    @property
    def share(self) -> float:
        return self.waited / self.seconds


def time_passes(strategy: str, job: Attention) -> tuple[Pass, Pass]:
    """Forward and backward on this rank, each from a start in step with the others."""
    watch, operands, run = Watch(), rank_operands(strategy, job), parallel_attention(strategy, job)
    q, k, v = operands.fresh(trains=True)
    with watched(lambda _world, _module: watch):
        dist.barrier()
        start = time.perf_counter()
        out = run(q, k, v)
        forward = Pass(time.perf_counter() - start, watch.waited)
        watch.reset()
        dist.barrier()
        start = time.perf_counter()
        out.backward(operands.grad)
        return forward, Pass(time.perf_counter() - start, watch.waited)


def time_transfer(strategy: str, job: Attention) -> float:
    """Seconds of one exchange of keys and values between neighbours, nothing else going on."""
    group = dist.group.WORLD
    assert group is not None
    world, operands = find_world(group.group_name), rank_operands(strategy, job)
    send = torch.cat([operands.k.flatten(), operands.v.flatten()])
    receive = torch.empty_like(send)
    dist.barrier()
    start = time.perf_counter()
    post_exchange(world, send, (world.rank + 1) % world.size, receive, (world.rank - 1) % world.size).wait()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Found:
    """Of the rank that waits most.  seconds, share: by way.  transfer: seconds."""

    seconds: dict[str, Samples]
    share: dict[str, Samples]
    transfer: Samples


def measure(ranks: ProcessWorld, options: Options, strategy: str, length: int) -> Found:
    job = Attention(length, options.heads, options.kv_heads, options.size)
    passes: list[list[tuple[Pass, Pass]]] = []

    def run_passes() -> float:
        passes.append(ranks.run(time_passes, strategy, job, timeout_s=1200))
        return 0.0

    def run_transfer() -> float:
        return max(ranks.run(time_transfer, strategy, job, timeout_s=600))

    variants: dict[str, Callable[[], float]] = {"passes": run_passes, "transfer": run_transfer}
    transfer = in_turn(variants, options.repeats)["transfer"]
    return _found(passes[-options.repeats :], transfer)


def _found(passes: list[list[tuple[Pass, Pass]]], transfer: Samples) -> Found:
    seconds: dict[str, Samples] = {}
    share: dict[str, Samples] = {}
    for at, way in enumerate(WAYS):
        worst = [max((rank[at] for rank in ranks), key=lambda one: one.share) for ranks in passes]
        seconds[way] = Samples.of(one.seconds for one in worst)
        share[way] = Samples.of(one.share for one in worst)
    return Found(seconds, share, transfer)


def run(options: Options) -> Result:
    rows: list[list[Cell]] = []
    shares: dict[str, list[Samples]] = {}
    with ProcessWorld(options.world) as ranks:
        for strategy in options.strategies:
            for length in options.lengths:
                found = measure(ranks, options, strategy, length)
                for way in WAYS:
                    seconds, share = found.seconds[way], found.share[way]
                    computed = seconds.median * (1 - share.median) / options.world / found.transfer.median
                    bound = BOUND if computed >= ENOUGH else None
                    rows.append([strategy, length, way, seconds, found.transfer * 1e3, computed, share, bound])
                    shares.setdefault(f"{strategy}, {way}", []).append(share)
    columns = {"": "", "tokens": ",", "way": "", "seconds": ".3f", "transfer ms": ".1f"}
    columns |= {"computing / transfer": ".1f", "waiting / all": ".3f", "bound": ".2f"}
    title = f"waiting, {options.world} ranks, {options.heads}:{options.kv_heads} heads of {options.size}"
    series = [Series(name, each, [BOUND] * len(each)) for name, each in shares.items()]
    chart = Chart("share", title, "tokens", "waiting / all (bound dashed)", options.lengths, series)
    return Result([Table(title, columns, rows)], [chart])


BENCHMARK = Benchmark(
    "time that ranks wait for transfers, of the time of attention",
    Options(),
    Options(lengths=(64, 128), strategies=("striped",), heads=2, kv_heads=2, size=16, repeats=2),
    run,
)
