"""The transformed side of a check: a program on every rank of a world of threads, over parameters of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, fx, nn

from sp.errors import ValidationError
from sp.passes.bind import bind
from sp.program import NOISE_SEED, Program
from sp.runtime.world import seat_name
from sp.testing.ranks import run_mesh, run_ranks
from sp.validation.sides import Seen, Side, Trial, Twin, observe

_TIMEOUT_S = 240.0
_NOISE = 7  # the seed of dropouts


def on_ranks(
    program: Program, plain: nn.Module, trials: Sequence[Trial], world: int, shape: tuple[int, ...]
) -> list[list[Seen]]:
    """What every rank sees."""

    def rank(group: str) -> list[Seen]:
        return observed(bound_side(program, plain, group), trials)

    try:
        if shape:
            return run_mesh(shape, lambda mesh: rank(mesh.name), timeout_s=_TIMEOUT_S)
        return run_ranks(world, lambda group: rank(group.group_name), timeout_s=_TIMEOUT_S)
    except Exception as error:
        raise ValidationError(
            f"the transformed {type(plain).__name__} fails in a world of {world}: {type(error).__name__}: {error}",
            needed="a program that runs wherever the plain model does",
            remedy="please report it with this model; do not train with it",
        ) from error


def bound_side(program: Program, plain: nn.Module, group: str) -> Side:
    """A rank's program over parameters of its own."""
    twin = Twin.of(program.graph_module, plain)
    module = cast(fx.GraphModule, twin.module)
    bound = bind(replace(program, graph_module=module), seat_name(group))
    added = [torch.tensor(_NOISE)] if is_random(program) else []

    def call(*tensors: Tensor) -> Sequence[Tensor]:
        return bound(*tensors, *added)

    return Side(call, twin.parameters, twin.buffers)


def observed(side: Side, trials: Sequence[Trial]) -> list[Seen]:
    """In order, on one copy of the model: what a call leaves behind (buffers, counters) the next one finds."""
    return [observe(side, trial) for trial in trials]


def is_random(program: Program) -> bool:
    return any(port.name == NOISE_SEED for port in program.inputs)
