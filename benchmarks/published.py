"""The cost model against what others published and what README shows.  Nothing is run.

    python -m benchmarks published

The striped attention paper: arXiv 2311.09431; its models are those of its code.  ring-flash-attention: its README, 8
GPUs of 8,192 tokens each, heads 32/8 of 128, bfloat16, causal, speed in percent of FlashAttention on each rank's own
tokens times the number of ranks.  CPU: README's table, 16,384 tokens, 8 heads of 64, float32, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tabulate import tabulate

import sp
from benchmarks.result import Result, Table
from benchmarks.suite import Benchmark
from sp.costs import MACHINES, Estimate, Machine, ModelShape

# Attention there is written in XLA, without a fused kernel: half the speed of products of matrices.  Its tiles are
# 2048 × 4096.  Transfers and merging are left out.  One "rank" is the two chips that share the heads.
_FREE = {"memory_bandwidth": 1e30, "link_bandwidth": 1e30, "link_latency": 0.0, "ranks_per_node": 4096}
XLA = replace(MACHINES["a100"], name="a100, XLA", attention_flops=120e12, tile=(2048, 4096), **_FREE)
# What the paper calls the maximum: a kernel that computes no hidden pair and is as fast on bands.
LIMIT = replace(XLA, name="no tiles", tile=(1, 1), banded=1.0)
PAPER = {
    "1B": ModelShape(22, 2048, 16, 16, 128, 5504, 32000),
    "3B": ModelShape(26, 3200, 32, 32, 100, 8640, 32000),
    "7B": ModelShape(32, 4096, 32, 32, 128, 11008, 32000),
}
LAYER = ModelShape(1, 4096, 32, 8, 128, 0, 0)
CPU_LAYER = ModelShape(1, 512, 8, 8, 64, 0, 0, item_bytes=4)
K = 1024
LENGTHS = {"256k": 256 * K, "786k": 768 * K}


@dataclass(frozen=True)
class Figure:
    """One published number, or the least and the most of several, and the model's."""

    what: str
    low: float
    high: float
    predicted: float

    @property
    def published(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"

    @property
    def error(self) -> float:
        """By how much the prediction lies outside."""
        return self.predicted - min(max(self.predicted, self.low), self.high)


def striped_over_ring(model: str, length: int, world: int, machine: Machine) -> float:
    """Of whole training steps."""
    found = sp.estimate(PAPER[model], length, world, machine, strategies=["ring", "striped"])
    return found["ring"].seconds / found["striped"].seconds


def maxima() -> Iterator[Figure]:
    for length, world, published in (("256k", 4, 1.71), ("786k", 8, 1.84)):
        predicted = striped_over_ring("3B", LENGTHS[length], world, LIMIT)
        yield Figure(f"striped / ring, 3B, {length}, ring of {world}: maximum", published, published, predicted)


def observed() -> Iterator[Figure]:
    """The TPUs as if they were A100s: only the share of attention and the tiles count."""
    tables = {
        ("A100", "256k", 4): {"1B": 1.41, "3B": 1.45, "7B": 1.43},
        ("TPUv4", "256k", 8): {"1B": 1.39, "3B": 1.50, "7B": 1.44},
        ("TPUv4", "786k", 8): {"3B": 1.65},
    }
    for (chip, length, world), table in tables.items():
        for model, published in table.items():
            predicted = striped_over_ring(model, LENGTHS[length], world, XLA)
            yield Figure(f"striped / ring, {model}, {length}, ring of {world}, {chip}", published, published, predicted)


def small_blocks() -> Iterator[Figure]:
    """4,096 tokens on each rank: a kernel tile is as large as the block and skips nothing."""
    for world in (4, 8):
        for model in PAPER:
            predicted = striped_over_ring(model, 4 * K * world, world, XLA)
            yield Figure(f"striped / ring, {model}, 4k per rank, ring of {world}, A100", 0.92, 0.98, predicted)


def percentages() -> Iterator[Figure]:
    """Its merges are some passes over memory each, where one would do.  Forward, then both directions."""
    tables = {
        "h800": {"ring": (52.1, 53.9), "striped": (74.4, 82.9), "zigzag": (85.2, 90.2)},
        "a100": {"ring": (51.4, 52.5), "striped": (69.6, 82.6), "zigzag": (81.7, 89.8)},
    }
    for name, table in tables.items():
        machine = replace(MACHINES[name], merge_passes=4)
        alone = sp.estimate(LAYER, 8 * K, 1, machine)["ring"]
        found = sp.estimate(LAYER, 64 * K, 8, machine)
        for strategy, percents in table.items():
            ways = (("forward", forward_seconds), ("both", attention_seconds))
            for (way, seconds), percent in zip(ways, percents, strict=True):
                predicted = 100 * 8 * seconds(alone) / seconds(found[strategy])
                yield Figure(f"{strategy}, % of FlashAttention, {way}, {name.upper()}", percent, percent, predicted)


def cpu() -> Iterator[Figure]:
    cores = replace(MACHINES["cpu"], attention_flops=2 * MACHINES["cpu"].attention_flops)
    single = attention_seconds(sp.estimate(CPU_LAYER, 16 * K, 1, cores)["ring"])
    found = sp.estimate(CPU_LAYER, 16 * K, 2, "cpu")
    for strategy, published in (("ring", 0.678), ("striped", 0.956), ("zigzag", 0.974)):
        predicted = single / attention_seconds(found[strategy])
        yield Figure(f"{strategy}, of a single process, 2 CPU cores", published, published, predicted)


def forward_seconds(each: Estimate) -> float:
    return each.forward.seconds


def attention_seconds(each: Estimate) -> float:
    return each.forward.seconds + each.backward.seconds


def figures() -> list[Figure]:
    return [*maxima(), *observed(), *small_blocks(), *percentages(), *cpu()]


def show(found: list[Figure]) -> str:
    return tabulate(
        [_row(each) for each in found],
        ("", "published", "model", "off by"),
        tablefmt="github",
        colalign=("left", *["right"] * 3),
        disable_numparse=True,
    )


def _row(each: Figure) -> tuple[str, ...]:
    digits = 1 if each.predicted > 2 else 3
    return (each.what, each.published, f"{each.predicted:.{digits}f}", f"{each.error:+.{digits}f}")


@dataclass(frozen=True)
class Options:
    """Nothing to choose."""


def run(_: Options) -> Result:
    columns = {"": "", "published low": "g", "published high": "g", "model": ".3f", "off by": "+.3f"}
    rows = [[each.what, each.low, each.high, each.predicted, each.error] for each in figures()]
    return Result([Table("the cost model against published figures", columns, rows)])


BENCHMARK = Benchmark("the cost model against published figures; nothing is run", Options(), Options(), run)
