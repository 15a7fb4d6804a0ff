"""Strategies: a named pair of a layout and a transport.  A strategy is a line in this table, never a file."""

from __future__ import annotations

from dataclasses import dataclass

from sp.errors import StrategyError


@dataclass(frozen=True)
class Strategy:
    name: str
    layout: str
    transport: str


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("ring", "contiguous", "ring"),  # Liu et al. 2023, arXiv 2310.01889
        Strategy("striped", "striped", "ring"),  # Brandon et al. 2023, arXiv 2311.09431
        Strategy("zigzag", "zigzag", "ring"),  # two mirrored chunks per rank
        Strategy("allgather", "zigzag", "allgather"),  # Llama 3 trains so, arXiv 2407.21783
        Strategy("ulysses", "contiguous", "alltoall"),  # Jacobs et al. 2023, arXiv 2309.14509
    )
}


def find_strategy(name: str) -> Strategy:
    """The strategy called `name`; StrategyError lists the known ones."""
    if name not in STRATEGIES:
        known = ", ".join(sorted(STRATEGIES))
        raise StrategyError(f"there is no strategy {name!r}", needed=f"one of: {known}")
    return STRATEGIES[name]
