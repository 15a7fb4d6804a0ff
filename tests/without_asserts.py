"""What `sp` does where Python leaves out its asserts: `python -O -m tests.without_asserts` prints it as json.

Nothing in here asserts: tests/test_without_asserts.py reads what is printed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import sp
from sp.passes import pipeline
from sp.passes.verify import Verify
from sp.runtime.ops.attention import attention
from sp.runtime.world import find_world
from sp.testing.compare import relative_error
from sp.testing.ranks import run_ranks
from tests.bad_input.harness import IDS, LABELS, decoder, tokens
from tests.passes.programs import IDS_BS, program_of
from tests.passes.test_verify import PLANTED, forward

STRATEGIES = ("ring", "striped", "zigzag", "allgather", "ulysses")
UNEVEN = tokens(length=11)


class Mixes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(31, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.e(ids)
        return x.transpose(1, 2).reshape(x.shape)  # tokens become features


def kept(module: nn.Module, *gradients: Any) -> None: ...


def steps(model: Callable[..., Any], plain: nn.Module) -> list[Tensor]:
    """Outputs and gradients of two steps of training."""
    found, optimizer = list[Tensor](), torch.optim.SGD(plain.parameters(), lr=0.1)
    for ids in (UNEVEN, UNEVEN.flip(1)):
        optimizer.zero_grad()
        loss, logits = model(ids, ids)[:2]
        loss.backward()
        found += [loss.detach(), logits.detach()]
        found += [value.grad.clone() for value in plain.parameters() if value.grad is not None]
        optimizer.step()
    return found


def training(strategy: str, world: int) -> float:
    """The largest relative error of any rank."""
    model = decoder()
    alone = copy.deepcopy(model)
    right = steps(alone, alone)

    def rank(group: dist.ProcessGroup) -> float:
        mine = copy.deepcopy(model)
        found = steps(sp.parallelize(mine, strategy, mesh=group, compile=False), mine)
        return max(relative_error(one, other) for one, other in zip(found, right, strict=True))

    return max(run_ranks(world, rank))


def said(run: Callable[[], object]) -> str:
    try:
        run()
    except Exception as error:  # noqa: BLE001 - what it says is the result
        return f"{type(error).__name__}: {error}"
    return "nothing"


def on_ranks(call: Callable[[dist.ProcessGroup], object]) -> list[str]:
    return run_ranks(2, lambda group: said(lambda: call(group)))


def hooked() -> nn.Module:
    model = decoder()
    model.head.register_full_backward_hook(kept)
    return model


def refusals() -> dict[str, list[str]]:
    models, with_hook, mixes = [decoder(), decoder(1)], hooked(), Mixes().double()

    def called(mine: nn.Module, group: dist.ProcessGroup, *given: Tensor) -> object:
        return sp.parallelize(copy.deepcopy(mine), mesh=group, compile=False)(*given)

    def attended(group: dist.ProcessGroup) -> object:
        q, k, v = torch.ones(3, 1, 2, 7, 4).unbind(0)
        return attention(q, k, v, [], "full", "", 0.5, 12, 12, "striped", "ring", "dense", group.group_name)

    def in_anothers_seat(group: dist.ProcessGroup) -> object:
        return find_world(f"{group.group_name} as rank {1 - group.rank()} of 2, ops 3")

    return {
        "a model that mixes tokens": on_ranks(lambda group: called(mixes, group, IDS)),
        "a hook of backward": on_ranks(lambda group: called(with_hook, group, IDS, LABELS)),
        "other contents": on_ranks(lambda group: called(models[0], group, (IDS + group.rank()) % 31, LABELS)),
        "other parameters": on_ranks(lambda group: called(models[group.rank()], group, IDS, LABELS)),
        "a token that no table has": on_ranks(lambda group: called(models[0], group, IDS + 31, LABELS)),
        "a strategy without a name": [said(lambda: sp.parallelize(models[0], 3))],  # type: ignore[arg-type]
        "shards of another length": on_ranks(attended),
        "the seat of another rank": on_ranks(in_anothers_seat),
    }


def planted() -> dict[str, str]:
    """Mistakes in a program, as `verify` finds them."""
    *passes, _ = pipeline()
    program = program_of(forward, IDS_BS, passes=passes)
    return {name: said(lambda plant=plant: Verify().run(plant(program.fork()))) for name, (plant, _) in PLANTED.items()}


if __name__ == "__main__":
    found = {
        "asserts": __debug__,
        "training": {f"{name} on {world}": training(name, world) for name in STRATEGIES for world in (2, 3)},
        "refusals": refusals(),
        "planted": planted(),
    }
    print(json.dumps(found))
