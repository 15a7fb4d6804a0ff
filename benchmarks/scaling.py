"""Scale on paper: Llama on thousands of ranks, by the cost model.  Nothing is run.

    python -m benchmarks scaling --worlds 64 1024 --lengths 10485760

One training step of one sequence: a block's activations are computed again in backward but for attention's; parameters,
gradients and Adam are divided over the ranks by FSDP.  docs/scaling.md shows the tables and says what they leave out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import sp
from benchmarks.on_paper import MODELS, Setting
from benchmarks.picture import Chart, Series
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark

GIB = 2**30
WALLS = ("zigzag", "allgather", "ulysses", "usp")


@dataclass(frozen=True)
class Options:
    """neighbours: ranks of the inner one of two axes.  local: tokens of each rank where the sequence grows with it."""

    worlds: tuple[int, ...] = (8, 64, 256, 1024, 4096)
    lengths: tuple[int, ...] = (131_072, 1_048_576, 10_485_760)
    model: str = "405B"
    machine: str = "h100"
    neighbours: int = 8
    local: int = 8192

    def setting(self, world: int, model: str = "") -> Setting:
        return Setting(model or self.model, self.machine, world, self.neighbours)


def by_strategy(options: Options, length: int) -> Table:
    """Everything that the model says of one length."""
    rows: list[list[Cell]] = []
    for world in options.worlds:
        at = options.setting(world)
        bound = at.even_share(length)
        for found in at.estimates(length):
            row: list[Cell] = [world, found.strategy.name, found.seconds, bound, found.exposed]
            row += [found.sent / GIB, found.memory / GIB, at.tiles(found, length), found.balance]
            rows.append([*row, at.utilisation(length, found.seconds)])
    columns = {"ranks": ",", "strategy": "", "step s": ",.1f", "bound s": ",.1f", "waiting s": ",.1f"}
    columns |= {"sent GiB": ",.0f", "memory GiB": ",.1f", "tiles": ",", "balance": ".3f", "MFU %": ".1f"}
    return Table(f"Llama {options.model} on {options.machine}, {length:,} tokens; of one rank", columns, rows)


def weak(options: Options) -> Table:
    """The sequence grows with the ranks."""
    rows: list[list[Cell]] = []
    for world in options.worlds:
        at, length = options.setting(world), options.local * world
        speeds = {each.strategy.name: at.utilisation(length, each.seconds) for each in at.estimates(length)}
        bound = at.utilisation(length, at.even_share(length))
        rows.append([world, length, bound, *(speeds.get(name) for name in sp.STRATEGIES)])
    columns = {"ranks": ",", "tokens": ",", "bound": ".1f", **dict.fromkeys(sp.STRATEGIES, ".1f")}
    title = f"MFU in % where each rank has {options.local:,} tokens, Llama {options.model} on {options.machine}"
    return Table(title, columns, rows)


def walls(options: Options) -> Table:
    """The longest sequence that fits into memory, and what would if nothing but activations were there."""
    rows: list[list[Cell]] = []
    for model in MODELS:
        for world in options.worlds:
            at = options.setting(world, model)
            work = at.shape.workload(world, recompute=True)
            bound = int(at.chip.memory / work.token_bytes) * world
            longest = [at.longest(name) if len([*at.meshes]) > 1 or name != "usp" else None for name in WALLS]
            rows.append([model, world, at.sharding.memory(work) / GIB, *longest, bound])
    columns = {"Llama": "", "ranks": ",", "state GiB": ",.1f", **dict.fromkeys(WALLS, ","), "bound": ","}
    return Table(f"longest sequence in the memory of {options.machine}, tokens", columns, rows)


def run(options: Options) -> Result:
    tables = {length: by_strategy(options, length) for length in options.lengths}
    growing, memory = weak(options), walls(options)
    charts = [
        _chart(f"mfu-{length}", f"MFU of one step over {length:,} tokens", "%", options, _by_strategy(table))
        for length, table in tables.items()
    ]
    charts.append(_chart("weak", growing.title, "%", options, _by_column(growing, sp.STRATEGIES)))
    own = [row for row in memory.rows if row[0] == options.model]
    points = [(name, row[1], _millions(row[3 + at])) for row in own for at, name in enumerate(WALLS)]
    title = f"Llama {options.model}: longest sequence in the memory of {options.machine}"
    charts.append(_chart("wall", title, "millions of tokens", options, points))
    return Result([*tables.values(), growing, memory], charts)


_Points = Iterable[tuple[str, Cell, Cell]]  # a line, its x and its y


def _millions(tokens: Cell) -> float | None:
    return tokens / 1e6 if isinstance(tokens, int) else None


def _by_strategy(table: Table) -> _Points:
    return [(str(row[1]), row[0], row[-1]) for row in table.rows]


def _by_column(table: Table, names: Iterable[str]) -> _Points:
    at = {name: place for place, name in enumerate(table.columns)}
    return [(name, row[0], row[at[name]]) for row in table.rows for name in names]


def _chart(name: str, title: str, unit: str, options: Options, points: _Points) -> Chart:
    """A line for each name; what is not there is a gap."""
    lines: dict[str, dict[Cell, Cell]] = {}
    for line, x, y in points:
        lines.setdefault(line, {})[x] = y
    series = [
        Series(line, [math.nan if found.get(world) is None else found[world] for world in options.worlds])
        for line, found in lines.items()
    ]
    return Chart(name, title, "ranks", unit, options.worlds, series)


BENCHMARK = Benchmark(
    "the cost model on thousands of ranks: step time, bytes, memory, the longest sequence",
    Options(),
    Options(worlds=(8, 16), lengths=(65_536,)),
    run,
)
