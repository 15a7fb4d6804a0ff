"""A program as data: lines over numbered values.  The inputs come first, each line adds one value."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fuzz.kinds import Kind, S, T

INPUTS = {
    "ids": Kind("ids", S),
    "labels": Kind("labels", S),
    "signal": Kind("hidden", S),  # without gradients: like ids, whole on every rank
    "features": Kind("hidden", S),
    "other": Kind("ids", T),
    "others": Kind("hidden", T),
}


@dataclass(frozen=True)
class Line:
    op: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """inputs: names among INPUTS.  outputs: numbers of values.  seed: of parameters and inputs.  turned: whether the
    inputs come with the sequence first."""

    inputs: tuple[str, ...]
    lines: tuple[Line, ...]
    outputs: tuple[int, ...]
    seed: int = 0
    train: bool = False
    batch: int = 2
    turned: bool = False

    def __repr__(self) -> str:
        """As one would write it, a line per value."""
        lines = [f"v{len(self.inputs) + at} = {_called(line)}" for at, line in enumerate(self.lines)]
        heads = [f"v{at}: {name}" for at, name in enumerate(self.inputs)]
        foot = (
            f"return {self.outputs}   # seed {self.seed}, train {self.train}, batch {self.batch}, turned {self.turned}"
        )
        return "\n  ".join(["", ", ".join(heads), *lines, foot])


def _called(line: Line) -> str:
    return f"{line.op}({', '.join(f'v{operand}' for operand in line.operands)})"
