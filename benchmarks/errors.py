"""Errors of attention against float64, by number of ranks and of tokens, relative to those of a single device's kernel.

    python -m benchmarks errors --lengths 256 1024 4096 --worlds 1 2 4 8 16

Causal attention of random tensors, forward and the gradients of q, k and v, on one device (torch's own
`scaled_dot_product_attention`) and over ranks that are threads, each against the same in float64: the 2-norm of the
difference over that of what is right.  A ratio of 1 is as exact as one device; that of the worst of the four is shown.
It must not grow with the ranks: sums over them are kept in float32, or in float64 for float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from benchmarks.picture import Chart, Series
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from sp.layout import find_layout
from sp.mask import CAUSAL
from sp.runtime.ops.attention import attention
from sp.strategy import Strategy, find_strategy
from sp.testing import run_ranks
from sp.testing.compare import relative_error

BOUND = 1.5
NAMES = ("out", "dq", "dk", "dv")
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Options:
    lengths: tuple[int, ...] = (256, 1024, 4096)
    worlds: tuple[int, ...] = (1, 2, 4, 8, 16)
    strategies: tuple[str, ...] = ("striped", "ring", "zigzag", "allgather", "ulysses")
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    heads: int = 4
    kv_heads: int = 2
    size: int = 32

    def operands(self, length: int) -> list[Tensor]:
        """q, k, v and the gradient of the output: [1, heads, length, size] in float64, of numbers that bfloat16 has."""
        generator = torch.Generator().manual_seed(length)
        shapes = [(1, heads, length, self.size) for heads in (self.heads, self.kv_heads, self.kv_heads, self.heads)]
        return [torch.randn(shape, generator=generator).bfloat16().double() for shape in shapes]


def on_one(operands: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """out, dq, dk, dv of one device."""
    return _both_ways(
        [x.to(dtype) for x in operands],
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
    )


def over(operands: list[Tensor], dtype: torch.dtype, strategy: Strategy, world: int) -> list[Tensor]:
    """The same over ranks, put together."""
    length, layout = operands[0].shape[2], find_layout(strategy.layout)

    def rank(group: dist.ProcessGroup) -> list[Tensor]:
        here = torch.tensor(layout.positions(length, group.rank(), world), dtype=torch.long)
        facts = ([], str(CAUSAL), "", operands[0].shape[3] ** -0.5, length, length)
        names = (strategy.layout, strategy.transport, "flash", group.group_name)
        mine = [x[:, :, here].to(dtype) for x in operands]
        return _both_ways(mine, lambda q, k, v: attention(q, k, v, *facts, *names)[0])

    parts = run_ranks(world, rank, timeout_s=600)
    order = torch.tensor([at for rank in range(world) for at in layout.positions(length, rank, world)]).argsort()
    return [torch.cat(values, dim=2)[:, :, order] for values in zip(*parts, strict=True)]


def _both_ways(operands: list[Tensor], attend: Attend) -> list[Tensor]:
    *qkv, gradient = operands
    q, k, v = (x.detach().requires_grad_() for x in qkv)
    out = attend(q, k, v)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), gradient)]


def errors(found: list[Tensor], right: list[Tensor]) -> list[float]:
    return [relative_error(mine, exact) for mine, exact in zip(found, right, strict=True)]


def run(options: Options) -> Result:
    rows: list[list[Cell]] = []
    charts: list[Chart] = []
    for dtype in options.dtypes:
        for length in options.lengths:
            found = ratios(options, dtype, length)
            own = found.single
            for name, worst in found.ratios.items():
                rows.append([dtype, length, *own, name, *worst, BOUND])
        title = f"{dtype}, {options.lengths[-1]:,} tokens: error over ranks / of one device"
        series = [Series(name, worst, [BOUND] * len(worst)) for name, worst in found.ratios.items()]
        charts.append(Chart(dtype, title, "ranks", "ratio of errors", options.worlds, series))
    columns = {"dtype": "", "tokens": ",", **dict.fromkeys(NAMES, ".1e"), "strategy": ""}
    columns |= {f"{world} ranks": ".2f" for world in options.worlds} | {"bound": ".1f"}
    title = "relative errors of one device against float64, and how many times as large over ranks (the worst of four)"
    return Result([Table(title, columns, rows)], charts)


@dataclass(frozen=True)
class Ratios:
    """single: the errors of one device, of NAMES.  ratios: of each strategy the worst of them for each world."""

    single: list[float]
    ratios: dict[str, list[float]]


def ratios(options: Options, dtype: str, length: int) -> Ratios:
    operands, kind = options.operands(length), getattr(torch, dtype)
    right = on_one(operands, torch.float64)
    single = errors(on_one(operands, kind), right)

    def worst(name: str, world: int) -> float:
        found = errors(over(operands, kind, find_strategy(name), world), right)
        return max(mine / own for mine, own in zip(found, single, strict=True))

    return Ratios(single, {name: [worst(name, world) for world in options.worlds] for name in options.strategies})


BENCHMARK = Benchmark(
    "errors of attention against float64 by ranks and tokens, relative to those of one device",
    Options(),
    Options(lengths=(96,), worlds=(1, 3), strategies=("striped", "ulysses")),
    run,
)
