"""One trial: a program captured once, then run by every rank of a world and compared with the plain model in fp64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import fx

from sp.errors import SpError, UnsupportedModelError
from sp.passes import pipeline
from sp.passes.bind import bind
from sp.passes.call import Call
from sp.passes.capture import capture
from sp.passes.manager import run_passes
from sp.program import NOISE_SEED
from sp.program import Program as Transformed
from sp.runtime.world import seat_name
from sp.strategy import find_strategy
from sp.testing.ranks import run_ranks
from sp.validation.compare import compare
from sp.validation.report import Row
from sp.validation.sides import Side, Trial, Twin, observe, shake
from tests.fuzz.model import Fuzzed, make_inputs
from tests.fuzz.program import Program

_EPS = torch.finfo(torch.float64).eps
_NOISE = 7  # the seed of dropouts
# What is zero in exact arithmetic (the divergence of a value from itself) is rounding on both sides: values are near 1.
_ZERO = 1e-13


@dataclass(frozen=True)
class World:
    """beyond: how many tokens the sequences have more than they must.  batch: how many rows, if not a single one."""

    size: int
    strategy: str
    beyond: tuple[int, int]
    batch: int = 3
    kernel: str | None = None


@dataclass(frozen=True)
class Outcome:
    verdict: Literal["exact", "refused", "wrong"]
    text: str = ""


def attempt(program: Program, world: World) -> Outcome:
    """Accepted and exact, refused, or wrong; whatever else escapes is an error of sp, too."""
    model = Fuzzed(program)
    examples = make_inputs(program, 13, 11, program.batch)
    model(*examples)  # the program itself is sound
    call, tensors = Call.of(model, examples, {})
    try:
        captured, outputs = capture(
            model, call, tensors, sequence_dim=0 if program.turned else 1, strategy=find_strategy(world.strategy)
        )
        transformed = run_passes(captured, pipeline(kernel=world.kernel))
    except SpError as error:
        if isinstance(error, UnsupportedModelError) or isinstance(error.__cause__, UnsupportedModelError):
            return Outcome("refused", str(error))
        raise
    lengths = _lengths(transformed, world)
    inputs = make_inputs(program, *lengths, program.batch if program.batch == 1 else world.batch)
    trial = Trial(lengths, program.seed, call.names, tuple(inputs), tuple(outputs.names))
    wrong = [row for row in _rows(model, transformed, trial, world.size) if not _agrees(row)]
    return Outcome("wrong", "\n".join(map(str, wrong))) if wrong else Outcome("exact")


def _agrees(row: Row) -> bool:
    return row.exact or (row.absolute <= _ZERO and math.isfinite(row.relative))


def _lengths(transformed: Transformed, world: World) -> tuple[int, int]:
    sizes = [max(one.shortest, world.size) for one in transformed.sequences]
    first, second = sizes[0], sizes[-1]
    return first + world.beyond[0], second + world.beyond[1]


def _rows(model: Fuzzed, transformed: Transformed, trial: Trial, world: int) -> list[Row]:
    noisy = any(port.name == NOISE_SEED for port in transformed.inputs)
    plain = _bound(model, transformed, "", noisy) if noisy else _plain(model)
    right = observe(plain, trial)
    moved = shake(plain, [trial], _EPS)
    shaken = observe(plain, moved[0])
    found = run_ranks(
        world, lambda group: observe(_bound(model, transformed, group.group_name, noisy), trial), timeout_s=120
    )
    return [
        row for rank, seen in enumerate(found) for row in compare(seen, right, shaken, torch.float64, f"rank {rank}")
    ]


def _plain(model: Fuzzed) -> Side:
    twin = Twin.of(model, model)
    return Side(lambda *inputs: list(twin.module(*inputs).values()), twin.parameters, twin.buffers)


def _bound(model: Fuzzed, transformed: Transformed, group: str, noisy: bool) -> Side:
    twin = Twin.of(transformed.graph_module, model)
    run = bind(replace(transformed, graph_module=cast(fx.GraphModule, twin.module)), seat_name(group))
    added = [torch.tensor(_NOISE)] if noisy else []
    return Side(lambda *inputs: run(*inputs, *added), twin.parameters, twin.buffers)
