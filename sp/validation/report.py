"""What a check found: one row for each output and each gradient, and the tolerance with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sp.show.words import table

_SHOWN = 12  # rows that are exact; those that are not are all shown

# A sum whose terms cancel has no digit that is right, on any device.  How much of it is noise is measured, by moving
# every parameter and input by its last digit; different orders of summation are allowed a thousand times that.
NOISES = 1000


def tolerance(dtype: torch.dtype) -> float:
    """The relative error that rounding alone may make: eps to the power of two thirds.

    A sum of n terms is off by at most n·eps relative to the sum of their sizes, and two orders of summation differ by
    no more than twice that; cancellation in norms and softmax amplifies it.  A third of the digits is left for both
    (float64: 4e-11, 170,000 roundings in a row; float32: 2e-5), while one token in the wrong place, counted twice or
    missing, is off by its share of the sequence, 1e-2 at the small lengths of a check."""
    return torch.finfo(dtype).eps ** (2 / 3)


def negligible(dtype: torch.dtype) -> float:
    """Relative to all gradients of one scalar together: what is smaller is zero in exact arithmetic (the bias of keys
    under a softmax), and its relative error is noise over noise.  Chosen so that 8 eps of the whole pass as noise."""
    return 8 * torch.finfo(dtype).eps ** (1 / 3)


@dataclass(frozen=True)
class Row:
    """One compared tensor, where it was worst: `relative` is the 2-norm of the difference over the single device's.

        >>> row = sp.check(nn.Linear(4, 4), (torch.ones(1, 8, 4),), world_size=2).rows[0]
        >>> row.what, row.exact, row.relative < 1e-10
        ('output', True, True)

    noise: how much the single device's own changes when its parameters and inputs do in their last digit."""

    what: str
    norm: float
    noise: float
    absolute: float
    relative: float
    verdict: str
    where: str

    @property
    def exact(self) -> bool:
        """Whether it agrees, up to rounding."""
        return self.verdict == "exact"


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The plain model and the transformed program, side by side in a world of threads.

        >>> report = sp.check(nn.Linear(4, 4), (torch.ones(1, 8, 4),), strategy="ring", world_size=2)
        >>> report, report.exact, report.as_dict()["lengths"]
        (<CheckReport: Linear, exact>, True, (…))

    reference: what stood for the plain model.  lengths: the sequences that were tried, in this order.  precision: the
    coarsest dtype in which the model computes what depends on its parameters and floating inputs."""

    model: str
    strategy: str
    world: int
    lengths: tuple[int, ...]
    reference: str
    precision: str
    tolerance: float
    rows: tuple[Row, ...]

    @property
    def exact(self) -> bool:
        """Whether every output and every gradient agrees on every rank at every length."""
        return all(row.exact for row in self.rows)

    def __str__(self) -> str:
        wrong = [row for row in self.rows if not row.exact]
        fine = sorted((row for row in self.rows if row.exact), key=lambda row: -row.relative)
        parts = [self._head(len(wrong)), _rows([*wrong, *fine[:_SHOWN]])]
        if len(fine) > _SHOWN:
            parts.append(f"{len(fine) - _SHOWN} more are exact, none with a larger error than the last one above")
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return f"<CheckReport: {self.model}, {'exact' if self.exact else 'NOT exact'}>"

    def _head(self, wrong: int) -> str:
        verdict = f"NOT exact: {wrong} of {len(self.rows)} differ" if wrong else f"exact: all {len(self.rows)} agree"
        facts = [
            ("model", f"{self.model}, {self.strategy}"),
            ("world", f"{self.world} ranks, threads of one process"),
            ("lengths", ", ".join(f"{length:,}" for length in self.lengths)),
            ("compared with", self.reference),
            ("tolerance", f"{self.tolerance:.0e} relative, since the model computes in {self.precision}"),
            ("verdict", verdict),
        ]
        return table(facts)

    def as_dict(self) -> dict[str, Any]:
        """The same facts as plain data, ready for json (with its NaN and Infinity)."""
        return {**asdict(self), "exact": self.exact}


def _rows(rows: Sequence[Row]) -> str:
    headers = ("compared", "norm", "noise", "absolute error", "relative error", "verdict", "worst at")
    shown = [
        (
            *(row.what, f"{row.norm:.3g}", f"{row.noise:.1e}", f"{row.absolute:.1e}", f"{row.relative:.1e}"),
            *(row.verdict, row.where),
        )
        for row in rows
    ]
    return table(shown, headers, right=(1, 2, 3, 4))


def worst_rows(rows: Sequence[Row]) -> tuple[Row, ...]:
    """One row for each compared tensor: the first that is not exact, or the one with the largest error."""
    worst: dict[str, Row] = {}
    for row in rows:
        known = worst.get(row.what)
        if known is None or (known.exact and (not row.exact or row.relative > known.relative)):
            worst[row.what] = row
    return tuple(worst.values())
