"""The pass manager: runs passes in order, each on a graph of its own, and checks what each of them claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sp.program import Program


class Pass(Protocol):
    """A pass is a frozen dataclass whose fields are its options.

    `run` returns a new Program and may change the graph it is given, which is its own.  `check` asserts on the result
    what the pass ensures; it is called after every run."""

    @property
    def name(self) -> str: ...

    def run(self, program: Program) -> Program: ...

    def check(self, program: Program) -> None: ...


Observer = Callable[[str, Program], None]


def run_passes(program: Program, passes: Sequence[Pass], observe: Observer | None = None) -> Program:
    """Run `passes` in order.  `observe(name, program)` sees every stage: for printing, timing, verification."""
    for step in passes:
        program = step.run(program.fork())
        program.graph.lint()
        step.check(program)
        if observe is not None:
            observe(step.name, program)
    return program
