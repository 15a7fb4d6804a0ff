"""Lanes: where the line of each value runs beside the rows, from where it is made to where it is last read.

Like registers: a lane is free again behind the last reader.  A row takes the lane of an operand that ends there, so
that a chain of values is one straight line.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_LANES = 16


def give_lanes(reads: Sequence[Sequence[int]], silent: Sequence[bool]) -> list[int]:
    """The lane of each row, or -1 for silent rows, which make no value.  reads: rows above, as in `Row`.

    Values beyond `MOST_LANES` share the last one."""
    last = list(range(len(reads)))
    for row, operands in enumerate(reads):
        for operand in operands:
            last[operand] = row
    lanes: list[int] = []
    until: list[int] = []  # of each lane: the last reader of the value that has it
    for row, operands in enumerate(reads):
        lanes.append(-1 if silent[row] else _choose([lanes[operand] for operand in operands], until, row))
        if not silent[row]:
            until[lanes[row]] = max(last[row], until[lanes[row]])
    return lanes


def _choose(operands: Sequence[int], until: list[int], row: int) -> int:
    ending = [lane for lane in operands if lane >= 0 and until[lane] <= row]
    free = ending or [lane for lane, end in enumerate(until) if end <= row]
    if free:
        return min(free)
    if len(until) == MOST_LANES:
        return MOST_LANES - 1
    until.append(row)
    return len(until) - 1
