"""The model that runs a program: parameters of every kind, and one line of the program after the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.fuzz.kinds import S
from tests.fuzz.ops import OPS
from tests.fuzz.parts import VOCAB, D, Parts
from tests.fuzz.program import INPUTS, Program


class Fuzzed(nn.Module):
    """forward(*inputs of the program) gives the values that the program names."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        torch.manual_seed(program.seed)
        self.program = program
        self.parts = Parts()
        self.double().train(program.train)

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        values = [given.transpose(0, 1) for given in inputs] if self.program.turned else list(inputs)
        for line in self.program.lines:
            values.append(OPS[line.op].run(self.parts, *(values[operand] for operand in line.operands)))
        return {f"v{number}": values[number] for number in self.program.outputs}


def make_inputs(program: Program, first: int, second: int, batch: int) -> list[Tensor]:
    """Of `first` and `second` tokens; labels ignored on the first half of a row."""
    draw = torch.Generator().manual_seed(program.seed + 1)
    made: list[Tensor] = []
    for name in program.inputs:
        kind = INPUTS[name]
        length = first if kind.length == S else second
        if kind.form == "hidden":
            given = torch.randn(batch, length, D, generator=draw, dtype=torch.float64)
        else:
            given = torch.randint(0, VOCAB, (batch, length), generator=draw)
        if kind.form == "labels":
            given[0, : length // 2] = -100
        given = given.transpose(0, 1).contiguous() if program.turned else given
        made.append(given.requires_grad_(kind.form == "hidden" and name != "signal"))
    return made
