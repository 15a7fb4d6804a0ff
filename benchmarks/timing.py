"""Samples of one figure, and the way they are taken: all variants in turn, so that a busy machine slows them alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Samples:
    """One figure in every repetition, in order."""

    values: tuple[float, ...]

    @staticmethod
    def of(values: Iterable[float]) -> Samples:
        return Samples(tuple(values))

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def least(self) -> float:
        return min(self.values)

    @property
    def most(self) -> float:
        return max(self.values)

    def __truediv__(self, other: Samples) -> Samples:
        """The ratio in each repetition, whose two runs have followed each other."""
        pairs = zip(self.values, other.values, strict=True)
        return Samples.of(mine / theirs for mine, theirs in pairs)

    def __mul__(self, factor: float) -> Samples:
        return Samples.of(value * factor for value in self.values)

    def __format__(self, spec: str) -> str:
        """`1.44 (1.42–1.45)`: the median, and the least and the most."""
        return f"{self.median:{spec}} ({self.least:{spec}}–{self.most:{spec}})"


def in_turn(variants: Mapping[T, Callable[[], float]], repeats: int, warmups: int = 1) -> dict[T, Samples]:
    """What each variant returns, usually seconds, in `repeats` rounds of all, after `warmups` that do not count."""
    found: dict[T, list[float]] = {name: [] for name in variants}
    for _ in range(warmups + repeats):
        for name, measure in variants.items():
            found[name].append(measure())
    return {name: Samples.of(values[warmups:]) for name, values in found.items()}
