"""A localized program on a world of threads against the model on one device: outputs and every gradient, in fp64."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sp.passes import pipeline
from sp.passes.bind import bind
from sp.program import Program
from sp.runtime.world import seat_name
from sp.testing.ranks import run_ranks
from tests.passes.programs import IDS_BS, Small, program_of

WORLD = 3
STRATEGIES = ("ring", "striped", "zigzag")


def single(model: Small, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    outputs = model(*inputs)
    return results(list(outputs) if isinstance(outputs, tuple) else [outputs], model, inputs)


def results(outputs: list[Tensor], model: Small, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and the gradients of all parameters and floating inputs."""
    leaves = [*model.parameters(), *(x for x in inputs if x.requires_grad)]
    losses = [output.double().square().sum() for output in outputs if output.requires_grad]
    gradients = torch.autograd.grad(losses, leaves, allow_unused=True, materialize_grads=True) if losses else ()
    return [output.detach() for output in outputs], list(gradients)


def check(model: Small, program: Program, inputs: Sequence[Tensor], world: int = WORLD) -> None:
    right_outputs, right_gradients = single(model, inputs)

    def rank(group: dist.ProcessGroup) -> tuple[list[Tensor], list[Tensor]]:
        module = bind(program, seat_name(group.group_name))
        mine = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        return results(list(module(*mine)), model, mine)

    for outputs, gradients in run_ranks(world, rank):
        for found, right in zip((*outputs, *gradients), (*right_outputs, *right_gradients), strict=True):
            torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-11)


def check_forward(
    forward: Callable[..., Any], strategy: str, lengths: Sequence[int] = (9, 7), world: int = WORLD
) -> None:
    """`forward(model, ids)`, see `Small`, at several lengths through one program."""
    torch.manual_seed(0)
    model = Small(forward).double()
    program = program_of(model, IDS_BS, passes=pipeline(), strategy=strategy)
    for length in lengths:
        check(model, program, [torch.randint(0, 11, (2, length))], world)
