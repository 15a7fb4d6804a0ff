"""Llama on thousands of ranks by the cost model: what the benchmark `scaling` tabulates."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import sp
from sp.costs import MACHINES, Estimate, Machine, ModelShape, Sharding
from sp.costs.phase import BACKWARD
from sp.layout import find_layout
from sp.mask import CAUSAL
from sp.plan import make_plan

MODELS = {  # Llama 3
    "8B": ModelShape(32, 4096, 32, 8, 128, 14336, 128256),
    "70B": ModelShape(80, 8192, 64, 8, 128, 28672, 128256),
    "405B": ModelShape(126, 16384, 128, 8, 128, 53248, 128256),
}
PEAK = {"a100": 312e12, "h100": 989e12, "h800": 989e12, "h200": 989e12}  # FLOP/s by the data sheets: 16 bits, dense
ADAM = 12.0  # bytes for each parameter: a copy in float32 and two moments
_LONGEST = 2**22  # tokens of one rank, more than any memory holds


@dataclass(frozen=True)
class Setting:
    """One model on one kind of machine, `world` ranks of it; neighbours: of the inner axis, where there are two."""

    model: str
    machine: str
    world: int
    neighbours: int = 8

    @property
    def shape(self) -> ModelShape:
        return MODELS[self.model]

    @property
    def chip(self) -> Machine:
        return MACHINES[self.machine]

    @property
    def sharding(self) -> Sharding:
        return Sharding(self.world, ADAM)

    @property
    def meshes(self) -> Iterator[int | tuple[int, int]]:
        yield self.world
        if self.world > self.neighbours and self.world % self.neighbours == 0:
            yield self.world // self.neighbours, self.neighbours

    def estimates(self, length: int, only: str = "") -> Iterator[Estimate]:
        """Of all strategies on one axis and on two, or of one of them."""
        for mesh in self.meshes:
            axes = 1 if isinstance(mesh, int) else 2
            names = [only] if only and sp.STRATEGIES[only].takes(axes) else None
            if names or not only:
                yield from sp.estimate(
                    self.shape, length, mesh, self.chip, recompute=True, sharding=self.sharding, strategies=names
                ).found

    def model_flops(self, length: int) -> float:
        """Of one training step in which nothing is computed twice: forward, and twice as much in backward."""
        return 3 * (self.shape.dense_flops * length + self._attention_flops(length))

    def utilisation(self, length: int, seconds: float) -> float:
        """MFU in percent: model flops over what the chips could do by their data sheets."""
        return 100 * self.model_flops(length) / (self.world * PEAK[self.machine] * seconds)

    def even_share(self, length: int) -> float:
        """Seconds of a step in which all ranks have as much to do, kernels are perfect and nobody waits."""
        dense = 4 * self.shape.dense_flops * length / self.chip.matmul_flops  # backward computes forward again
        attention = (1 + BACKWARD) * self._attention_flops(length) / self.chip.attention_flops
        return (dense + attention) / self.world

    def _attention_flops(self, length: int) -> float:
        return self.shape.layers * self.shape.attention.pair_flops * length * (length + 1) / 2

    def tiles(self, found: Estimate, length: int) -> int:
        """Of one attention: those of the first rank, of the middle one or of the last, whichever has most."""
        strategy, world = found.strategy, self.world
        layout, inner = find_layout(strategy.layout), strategy.shape[-1] if strategy.shape else None
        if strategy.transport == "alltoall":
            layout, joined = layout.nesting(world)
            world, inner = world // joined, None
        ranks = {0, world // 2, world - 1}
        plans = (make_plan(layout.name, CAUSAL, length, world, rank, None, inner) for rank in ranks)
        return max(sum(len(step.tiles) for step in plan.steps) for plan in plans)

    def longest(self, strategy: str) -> int:
        """The longest sequence whose step fits into memory; 0 where none does."""

        def is_too_long(local: int) -> bool:
            return not all(each.fits for each in self.estimates(local * self.world, strategy))

        steps = range(256, _LONGEST, 256)
        fitting = bisect_left(steps, True, key=is_too_long)
        return steps[fitting - 1] * self.world if fitting else 0
