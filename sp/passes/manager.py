"""The pass manager: runs passes in order, on a graph of their own, and checks what each of them claims."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sp.passes.fxtools import shape, tensor
from sp.program import Program


class Pass(Protocol):
    """A pass is a frozen dataclass whose fields are its options.

    `run` returns a new Program and may change the graph it is given, which is its own.  `check` asserts on the result
    what the pass ensures; it is called after every run.  Python code is made of a graph after the last pass alone."""

    @property
    def name(self) -> str: ...

    def run(self, program: Program) -> Program: ...

    def check(self, program: Program) -> None: ...


_LOG = logging.getLogger(__name__)

Observer = Callable[[str, Program], None]


def _check_sequences(program: Program, name: str) -> None:
    """A guard of torch's can turn a size symbol into a number, behind everybody's back."""
    inputs = program.graph.find_nodes(op="placeholder")
    sizes = [size for node in inputs if tensor(node) is not None for size in shape(node)]
    known = {symbol for size in sizes for symbol in size.free_symbols}
    if not program.symbols <= known:
        raise AssertionError(f"{name} has fixed the length of a sequence")


def run_passes(
    program: Program, passes: Sequence[Pass], observe: Observer | None = None, *, keep_stages: bool = False
) -> Program:
    """Run `passes` in order; `program` itself stays as it is.  `observe(name, program)` sees every stage.

    keep_stages: each pass works on a copy, so that what `observe` has seen stays as it was: for printing, not for
    timing, since copies take as long as the passes."""
    for number, step in enumerate(passes):
        start = time.perf_counter()
        program = step.run(program.fork() if keep_stages or number == 0 else program)
        program.graph.lint()
        _check_sequences(program, step.name)
        step.check(program)
        if keep_stages or number + 1 == len(passes):
            program.graph_module.recompile()
        done = program.history[-1].text if program.history else ""
        _LOG.debug("%s: %s, %.3f s", step.name, done, time.perf_counter() - start)
        if observe is not None:
            observe(step.name, program)
    return program
