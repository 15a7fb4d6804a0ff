"""`python -m tests.covered out/coverage.json`: enough of `sp` is covered, of its lines and of its branches.

Reads what `coverage json` writes, and ends with 1 where either is below its limit.  coverage's own `fail_under` knows
their sum alone, in which many lines hide few branches.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Per cent.
LIMITS = {"lines": 95.0, "branches": 90.0}


@dataclass(frozen=True)
class Share:
    """What is covered of one kind, of so many there are."""

    kind: str
    covered: int
    count: int

    @property
    def percent(self) -> float:
        """Of nothing nothing is covered: such a measurement has gone wrong."""
        return 100 * self.covered / self.count if self.count else 0.0

    @property
    def is_enough(self) -> bool:
        return self.percent >= LIMITS[self.kind]

    def __str__(self) -> str:
        verdict = "enough" if self.is_enough else "NOT ENOUGH"
        figures = f"{self.covered:,} of {self.count:,} {self.kind} covered, {self.percent:.2f} %"
        return f"{figures}; needed: {LIMITS[self.kind]:.0f} %: {verdict}"


def shares(report: dict[str, Any]) -> list[Share]:
    totals = report["totals"]
    return [
        Share("lines", totals["covered_lines"], totals["num_statements"]),
        Share("branches", totals["covered_branches"], totals["num_branches"]),
    ]


def main(path: str) -> int:
    found = shares(json.loads(Path(path).read_text()))
    print(*found, sep="\n")
    return 0 if all(share.is_enough for share in found) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
