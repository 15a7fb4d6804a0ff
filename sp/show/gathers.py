"""What it costs that outputs are whole on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import sympy

from sp.program import Port, Program


def gathered_bytes(program: Program, lengths: Sequence[int], world: int) -> list[int]:
    """For each output, how many bytes each rank receives to make it whole, for one sequence of the batch.

    Zero where nothing is gathered: of a loss, of an output that stays on its ranks, in a world of one."""
    return [_whole(port, program, lengths) * (world - 1) // world for port in program.outputs]


def _whole(port: Port, program: Program, lengths: Sequence[int]) -> int:
    if port.whole_bytes is None:
        return 0
    pairs = zip(program.sequences, lengths, strict=True)
    size = port.whole_bytes.xreplace({sequence.symbol: sympy.Integer(length) for sequence, length in pairs})
    return int(cast(sympy.Integer, size.xreplace(dict.fromkeys(size.free_symbols, sympy.Integer(1)))))
