"""Causal attention on ranks of one thread each against one process of as many threads.

    python -m benchmarks attention --lengths 4096 8192 16384 --worlds 2 --repeats 5

Float32, forward alone and with backward, every strategy at every length and world.  `speed` is over the single process;
its bound is what the plans allow (`benchmarks/bounds.py`): ring's last rank has work in every step while others wait.
Where there are more ranks than cores, ranks that wait lend their core to others, and no bound is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.bounds import attention_bound
from benchmarks.machine import CORES, fitting_worlds
from benchmarks.picture import Chart, Series
from benchmarks.ranks import SINGLE, Attention, time_attention
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from benchmarks.timing import Samples, in_turn
from sp.testing import ProcessWorld

STRATEGIES = ("ring", "striped", "zigzag", "allgather", "ulysses")
WAYS = {"forward": False, "forward + backward": True}


@dataclass(frozen=True)
class Options:
    lengths: tuple[int, ...] = (4096, 8192, 16384)
    worlds: tuple[int, ...] = fitting_worlds()
    strategies: tuple[str, ...] = STRATEGIES
    heads: int = 8
    kv_heads: int = 8
    size: int = 64
    repeats: int = 5

    def job(self, length: int) -> Attention:
        return Attention(length, self.heads, self.kv_heads, self.size)


Found = dict[str, Samples]  # seconds of the slowest rank, by strategy or SINGLE


def run(options: Options) -> Result:
    tables: list[Table] = []
    charts: list[Chart] = []
    for world in options.worlds:
        with ProcessWorld(1, threads_per_rank=world) as single, ProcessWorld(world) as ranks:
            for way, backward in WAYS.items():
                found = {length: measure(single, ranks, options, length, backward) for length in options.lengths}
                tables += [_table(options, world, way, length, found[length]) for length in options.lengths]
                charts.append(_chart(options, world, way, found))
    return Result(tables, charts)


def measure(single: ProcessWorld, ranks: ProcessWorld, options: Options, length: int, backward: bool) -> Found:
    """Every strategy once in each repetition, and the single process."""

    def slowest(where: ProcessWorld, strategy: str) -> float:
        return max(where.run(time_attention, strategy, options.job(length), backward, timeout_s=1200))

    variants: dict[str, Callable[[], float]] = {SINGLE: partial(slowest, single, SINGLE)}
    variants |= {name: partial(slowest, ranks, name) for name in options.strategies}
    return in_turn(variants, options.repeats)


def _bound(options: Options, name: str, length: int, world: int) -> float | None:
    if world > CORES:
        return None
    return 1.0 if name == SINGLE else attention_bound(name, length, world, options.heads, options.kv_heads)


def _table(options: Options, world: int, way: str, length: int, found: Found) -> Table:
    ring = found.get("ring")
    rows: list[list[Cell]] = []
    for name, seconds in found.items():
        named = f"single, {world} threads" if name == SINGLE else name
        over_ring = None if ring is None or name == SINGLE else ring / seconds
        rows.append([named, seconds, found[SINGLE] / seconds, _bound(options, name, length, world), over_ring])
    columns = {"": "", "seconds": ".3f", "speed / single": ".3f", "bound": ".3f", "speed / ring": ".2f"}
    heads = f"{options.heads}:{options.kv_heads} heads of {options.size}"
    crowded = f" on {CORES} cores" if world > CORES else ""
    return Table(f"{way}, {length:,} tokens, {heads}, {world} ranks{crowded}", columns, rows)


def _chart(options: Options, world: int, way: str, found: dict[int, Found]) -> Chart:
    series = [
        Series(
            name,
            [each[SINGLE] / each[name] for each in found.values()],
            [_bound(options, name, length, world) for length in found],
        )
        for name in options.strategies
    ]
    name = f"{way.replace(' + ', '-')}-{world}-ranks"
    title = f"Causal attention, {way}: {world} ranks against one process of {world} threads"
    return Chart(name, title, "tokens", "speed / single process (bound dashed)", list(found), series)


BENCHMARK = Benchmark(
    "causal attention, strategies at several lengths and worlds, against one process",
    Options(),
    Options(lengths=(64, 96), worlds=(2,), heads=2, kv_heads=2, size=16, repeats=2),
    run,
)
