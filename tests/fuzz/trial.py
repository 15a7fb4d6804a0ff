"""One trial: a program captured once, then run by every rank of a world and compared with the plain model in fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, fx

from sp.errors import SpError, UnsupportedModelError
from sp.passes import distribution, preparation
from sp.passes.bind import bind
from sp.passes.call import Call
from sp.passes.capture import capture
from sp.passes.manager import Pass, run_passes
from sp.passes.pieces import cut
from sp.pieces import assemble
from sp.program import NOISE_SEED
from sp.program import Program as Transformed
from sp.runtime.comm import all_reduce
from sp.runtime.world import find_world, seat_name
from sp.strategy import Strategy, find_strategy
from sp.testing.ranks import run_mesh, run_ranks
from sp.validation.compare import compare
from sp.validation.report import Row
from sp.validation.sides import Seen, Side, Trial, Twin, observe, shake
from tests.fuzz.model import Fuzzed, make_inputs
from tests.fuzz.program import Program

_EPS = torch.finfo(torch.float64).eps
_NOISE = 7  # the seed of dropouts
# What is zero in exact arithmetic (the divergence of a value from itself) is rounding on both sides: values are near 1.
_ZERO = 1e-13


@dataclass(frozen=True)
class World:
    """beyond: how many tokens the sequences have more than they must.  batch: how many rows, if not a single one.
    inner: ranks of the second axis of the mesh, for strategies that take two.
    summed_later: whether gradients are summed over the ranks after backward; averaged: or averaged, then.
    pieces: whether the graph is cut, with the program's parts for blocks."""

    size: int
    strategy: str
    beyond: tuple[int, int]
    batch: int = 3
    kernel: str | None = None
    inner: int = 1
    summed_later: bool = False
    pieces: bool = False
    averaged: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size // self.inner, self.inner) if find_strategy(self.strategy).axes else (self.size,)

    def passes(self) -> tuple[Pass, ...]:
        sync, averaged = not self.summed_later, self.averaged
        return (*preparation(), *distribution(kernel=self.kernel, sync_gradients=sync, averaged=averaged))

    def on(self, shape: tuple[int, ...]) -> Strategy:
        return find_strategy(self.strategy).on(shape)


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
            model, call, tensors, sequence_dim=0 if program.turned else 1, strategy=world.on(world.shape)
        )
        transformed = run_passes(captured, world.passes())
    except SpError as error:
        if isinstance(error, UnsupportedModelError) or isinstance(error.__cause__, UnsupportedModelError):
            return Outcome("refused", str(error))
        raise
    lengths = _lengths(transformed, world)
    inputs = make_inputs(program, *lengths, program.batch if program.batch == 1 else world.batch)
    trial = Trial(lengths, program.seed, call.names, tuple(inputs), tuple(outputs.names))
    side = _plain(model)
    if _is_noisy(transformed):  # what it is on one rank
        alone = replace(captured, strategy=world.on((1,) * len(world.shape)))
        side = _bound(model, run_passes(alone, world.passes()), "")
    wrong = [row for row in _rows(model, side, transformed, trial, world) if not _agrees(row)]
    return Outcome("wrong", "\n".join(map(str, wrong))) if wrong else Outcome("exact")


def _agrees(row: Row) -> bool:
    return row.exact or (row.absolute <= _ZERO and math.isfinite(row.relative))


def _lengths(transformed: Transformed, world: World) -> tuple[int, int]:
    sizes = [max(one.shortest, world.size) for one in transformed.sequences]
    first, second = sizes[0], sizes[-1]
    return first + world.beyond[0], second + world.beyond[1]


def _is_noisy(program: Transformed) -> bool:
    return any(port.name == NOISE_SEED for port in program.inputs)


def _rows(model: Fuzzed, plain: Side, transformed: Transformed, trial: Trial, world: World) -> list[Row]:
    right = observe(plain, trial)
    moved = shake(plain, [trial], _EPS)
    shaken = observe(plain, moved[0])

    def rank(group: str) -> Seen:
        seen = observe(_bound(model, transformed, group, world.pieces), trial)
        names, parts = [name for name, _ in model.named_parameters()], world.size if world.averaged else 1
        return _summed(seen, names, group, parts) if world.summed_later else seen

    found = _on_ranks(world, rank)
    return [
        row for rank, seen in enumerate(found) for row in compare(seen, right, shaken, torch.float64, f"rank {rank}")
    ]


def _on_ranks(world: World, run: Callable[[str], Seen]) -> list[Seen]:
    if len(world.shape) > 1:
        return run_mesh(world.shape, lambda mesh: run(mesh.name), timeout_s=120)
    return run_ranks(world.size, lambda group: run(group.group_name), timeout_s=120)


def _summed(seen: Seen, parameters: list[str], group: str, parts: int) -> Seen:
    """Gradients of parameters are this rank's part, times `parts`."""
    world = find_world(group)

    def whole(name: str, part: Tensor | None) -> Tensor | None:
        return part if part is None or name not in parameters else all_reduce(world, part, dist.ReduceOp.SUM) / parts

    found = {of: {name: whole(name, part) for name, part in its.items()} for of, its in seen.gradients.items()}
    return replace(seen, gradients=found)


def _plain(model: Fuzzed) -> Side:
    twin = Twin.of(model, model)
    return Side(lambda *inputs: list(twin.module(*inputs).values()), twin.parameters, twin.buffers)


def _bound(model: Fuzzed, transformed: Transformed, group: str, pieces: bool = False) -> Side:
    twin = Twin.of(transformed.graph_module, model)
    run = bind(replace(transformed, graph_module=cast(fx.GraphModule, twin.module)), seat_name(group))
    if pieces:
        parts = cut(run, [f"parts.{name}" for name, _ in model.parts.named_children()])
        run = assemble(parts, run, getattr(run, "model", run), lambda code: code)
    added = [torch.tensor(_NOISE)] if _is_noisy(transformed) else []
    return Side(lambda *inputs: run(*inputs, *added), twin.parameters, twin.buffers)
