"""Every rank's tiles on one GPU, one after the other, with the real kernels: how well a layout could divide the work.

    python -m benchmarks gpu_ranks --lengths 8192 65536 524288 --worlds 8 64

The ratio is t(one FlashAttention call over the whole sequence) / (world × critical path), the critical path being the
sum over the steps of the slowest rank's tiles.  Transfers and merging are left out: it is the limit that work alone
sets, measured.  Its bound is the same in pairs of a query and a key, with a kernel that is as fast on every tile.

Tiles of one shape cost the same, so that each shape is measured once.  Where a call is shorter than its launch, it is
the launch that is measured.  On a GPU time is measured by events, elsewhere by the clock; lengths whose tensors do not
fit or that would take too long are left out, and named.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.bounds import critical_area
from benchmarks.picture import Chart, Series
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from benchmarks.timing import Samples
from sp.layout import find_layout
from sp.mask import CAUSAL
from sp.plan import Plan, Tile, make_plan
from sp.runtime.kernels import find_kernel
from sp.strategy import find_strategy

WAYS = ("forward", "backward")
SHORTEST = 2e-3  # seconds that one sample takes at least, of as many calls as that needs
FREE_ON_CPU = 4 << 30  # bytes that may be taken where there is no GPU


@dataclass(frozen=True)
class Options:
    """most_seconds: of one call over a whole sequence, forecast from the length before."""

    lengths: tuple[int, ...] = tuple(1024 * 2**power for power in range(3, 11))
    worlds: tuple[int, ...] = (8, 16, 32, 64)
    strategies: tuple[str, ...] = ("ring", "striped", "zigzag")
    heads: int = 8
    kv_heads: int = 2
    size: int = 128
    dtype: str = "bfloat16"
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    repeats: int = 5
    most_seconds: float = 30.0


@dataclass(frozen=True)
class Shape:
    """What a tile's cost depends on."""

    rows: int
    columns: int
    lower: int | None
    upper: int | None

    @staticmethod
    def of(tile: Tile) -> Shape:
        return Shape(tile.q1 - tile.q0, tile.k1 - tile.k0, tile.lower, tile.upper)

    @property
    def tile(self) -> Tile:
        return Tile(0, self.rows, 0, self.columns, self.lower, self.upper)


Times = dict[str, Samples]  # seconds of one tile, by way


class Replay:
    """Times of shapes, each measured when it is first asked for."""

    def __init__(self, options: Options) -> None:
        self._options, self._known = options, dict[Shape, Times]()

    def times(self, tile: Tile) -> Times:
        shape = Shape.of(tile)
        if shape not in self._known:
            self._known[shape] = self._measure(shape.tile)
        return self._known[shape]

    def critical(self, plans: list[Plan], way: str) -> Samples:
        """The sum over the steps of the slowest rank, in each repetition."""

        def total(repeat: int) -> float:
            steps = zip(*(plan.steps for plan in plans), strict=True)
            return sum(
                max(sum(self.times(tile)[way].values[repeat] for tile in step.tiles) for step in ranks)
                for ranks in steps
            )

        return Samples.of(total(repeat) for repeat in range(self._options.repeats))

    def _measure(self, tile: Tile) -> Times:
        options, kernel = self._options, find_kernel("flash")
        q, k, v = (self._operand(*about) for about in self._operands(tile))
        pieces, scale = kernel.cut(tile, options.device), options.size**-0.5

        def forward() -> list[tuple[Tensor, Tensor]]:
            return [kernel.forward(*_cut(piece, q, k, v), piece, scale, None) for piece in pieces]

        found = forward()

        def backward() -> None:
            for piece, (out, lse) in zip(pieces, found, strict=True):
                # Of the values nothing depends on but themselves: the output stands in for its gradient.
                kernel.backward(out, *_cut(piece, q, k, v), out, lse, piece, scale, None, [])

        runs: dict[str, Callable[[], object]] = {"forward": forward, "backward": backward}
        return {way: sample(runs[way], options.device, options.repeats) for way in WAYS}

    def _operands(self, tile: Tile) -> list[tuple[int, int]]:
        rows, columns = tile.q1 - tile.q0, tile.k1 - tile.k0
        return [(self._options.heads, rows), (self._options.kv_heads, columns), (self._options.kv_heads, columns)]

    def _operand(self, heads: int, length: int) -> Tensor:
        """Laid out as a projection leaves it."""
        kind = {"dtype": getattr(torch, self._options.dtype), "device": self._options.device}
        return torch.randn(1, length, heads, self._options.size, **kind).transpose(1, 2)


def _cut(piece: Tile, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = (2, piece.q0, piece.q1 - piece.q0), (2, piece.k0, piece.k1 - piece.k0)
    return q.narrow(*rows), k.narrow(*columns), v.narrow(*columns)


def sample(run: Callable[[], object], device: str, repeats: int) -> Samples:
    """Seconds of one call in each repetition, after a first one that warms up."""
    measure = partial(_events if device == "cuda" else _clock, run)
    measure(1)
    calls = max(1, round(SHORTEST / max(measure(1), 1e-9)))
    return Samples.of(measure(calls) for _ in range(repeats))


def _events(run: Callable[[], object], calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / calls


def _clock(run: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def refusal(options: Options, length: int, last: tuple[int, float] | None) -> str:
    """Why `length` is left out; "" if it is not.  last: the length before, and the seconds of a call there."""
    numbers = length * options.size * (4 * options.heads + 4 * options.kv_heads)
    needed = numbers * 4  # operands and gradients, and some of them in float32
    free = torch.cuda.mem_get_info()[0] if options.device == "cuda" else FREE_ON_CPU
    if needed > free:
        return f"{length:,} tokens left out: about {needed / 2**30:.0f} GiB, and {free / 2**30:.0f} are free"
    forecast = 0.0 if last is None else last[1] * (length / last[0]) ** 2
    if forecast > options.most_seconds:
        return f"{length:,} tokens left out: about {forecast:.0f} s a call, more than {options.most_seconds:.0f}"
    return ""


@dataclass(frozen=True)
class Found:
    """full: one call over the whole sequence.  bound: None for no rank that could have any part of it."""

    length: int
    world: int
    strategy: str
    way: str
    full: Samples
    critical: Samples
    bound: float

    @property
    def ratio(self) -> Samples:
        return self.full / (self.critical * self.world)


def measure(options: Options, length: int) -> list[Found]:
    """Every layout, world and way at one length, and the call over all of it."""
    replay, found = Replay(options), list[Found]()
    full = replay.times(Tile(0, length, 0, length, None, 0))
    for world in (world for world in options.worlds if world <= length):
        for strategy in options.strategies:
            layout = find_layout(find_strategy(strategy).layout).name
            plans = [make_plan(layout, CAUSAL, length, world, rank) for rank in range(world)]
            bound = sum(plan.area for plan in plans) / world / critical_area(plans)
            for way in WAYS:
                found.append(Found(length, world, strategy, way, full[way], replay.critical(plans, way), bound))
    return found


def run(options: Options) -> Result:
    found: list[Found] = []
    notes: list[str] = []
    last: tuple[int, float] | None = None
    for length in options.lengths:
        if why := refusal(options, length, last):
            notes.append(f"{why}.")
            continue
        found += measure(options, length)
        last = length, max(each.full.median for each in found if each.length == length)
    rows: list[list[Cell]] = [
        [each.length, each.world, each.strategy, each.way, each.full * 1e3, each.critical * 1e3, each.ratio, each.bound]
        for each in found
    ]
    columns = {"tokens": ",", "world": "", "": "", "way": "", "one call ms": ".2f", "critical path ms": ".3f"}
    heads = f"{options.heads}:{options.kv_heads} heads of {options.size}, {options.dtype}"
    title = f"every rank's tiles on one {_chip(options.device)}, {heads}"
    charts = [_chart(found, world, way) for world in options.worlds for way in WAYS]
    return Result([Table(title, columns | {"ratio": ".3f", "bound": ".3f"}, rows)], charts, notes)


def _chip(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "processor"


def _chart(found: list[Found], world: int, way: str) -> Chart:
    mine = [each for each in found if (each.world, each.way) == (world, way)]
    lengths = list(dict.fromkeys(each.length for each in mine))
    series = [
        Series(name, [each.ratio for each in ours], [each.bound for each in ours])
        for name in dict.fromkeys(each.strategy for each in mine)
        if (ours := [each for each in mine if each.strategy == name])
    ]
    title = f"One call / ({world} × critical path), {way}"
    return Chart(f"{way}-{world}-ranks", title, "tokens", "ratio (bound dashed)", lengths, series)


BENCHMARK = Benchmark(
    "every rank's tiles on one GPU, one after the other, against one FlashAttention call",
    Options(),
    Options(lengths=(128, 256, 1 << 24), worlds=(2, 3), heads=2, kv_heads=1, size=16, dtype="float32", repeats=2),
    run,
)
