"""What it costs that outputs are whole on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import sympy
from torch import fx

from sp.passes.fxtools import op_name, product, shape, tensor
from sp.program import Program


def gathered_bytes(program: Program, lengths: Sequence[int], world: int) -> list[int]:
    """For each output, how many bytes each rank receives to make it whole, for one sequence of the batch.

    Zero where nothing is gathered: of a loss, of an output that stays on its ranks, in a world of one."""
    values = cast("Sequence[fx.Node]", program.graph.output_node().args[0])
    return [_whole(value, program, lengths) * (world - 1) // world for value in values]


def _whole(value: fx.Node, program: Program, lengths: Sequence[int]) -> int:
    fake = tensor(value)
    if op_name(value) != "sp.unshard" or fake is None:
        return 0
    pairs = zip(program.sequences, lengths, strict=True)
    size = product(shape(value)).xreplace({sequence.symbol: sympy.Integer(length) for sequence, length in pairs})
    one = size.xreplace(dict.fromkeys(size.free_symbols, sympy.Integer(1)))  # of the batch
    return int(cast(sympy.Integer, one)) * fake.dtype.itemsize
