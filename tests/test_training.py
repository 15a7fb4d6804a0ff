"""What stands between backward and the next step: accumulation, clipping, optimizers of every implementation."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

import sp
from sp.models import Llama, LlamaConfig
from sp.testing import run_ranks
from sp.testing.compare import relative_error
from sp.testing.ranks import ProcessWorld

pytestmark = pytest.mark.usefixtures("one_capture")

NORM = 0.1  # less than that of the gradients, so that clipping does something
BATCHES, STEPS = 3, 2


def llama() -> Llama:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=2, heads=4, kv_heads=2, width=32)).double()


def batches(replicas: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 61, (replicas, 11 + number), generator=generator) for number in range(BATCHES)]


@dataclass(frozen=True)
class Trained:
    norms: list[float]
    parameters: list[Tensor]

    def is_close_to(self, other: "Trained") -> bool:
        """Adam divides by the root of squares: where a gradient is tiny, its rounding is not."""
        pairs = zip(self.parameters, other.parameters, strict=True)
        return self.norms == pytest.approx(other.norms, rel=1e-12) and all(
            relative_error(a, b) < 1e-8 for a, b in pairs
        )


def whole(value: Tensor) -> Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach()


def train(run: nn.Module, model: nn.Module, mine: list[Tensor], implementation: dict[str, Any]) -> Trained:
    """Several backwards, then clipping and a step; FSDP sums with the last backward."""
    optimizer, norms = torch.optim.AdamW(model.parameters(), lr=0.01, **implementation), list[float]()
    for _ in range(STEPS):
        for number, ids in enumerate(mine):
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(number + 1 == len(mine))
            run(ids, labels=ids).loss.div(len(mine)).backward()
        norms.append(whole(nn.utils.clip_grad_norm_(model.parameters(), NORM)).item())
        optimizer.step()
        optimizer.zero_grad()
    return Trained(norms, [whole(parameter).clone() for parameter in model.parameters()])


IMPLEMENTATIONS: dict[str, dict[str, Any]] = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {}}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_plain_parameters(name: str) -> None:
    model, models, implementation = llama(), [llama() for _ in range(3)], IMPLEMENTATIONS[name]
    right = train(model, model, batches(1), implementation)
    assert min(right.norms) > NORM

    def rank(group: dist.ProcessGroup) -> Trained:
        mine = models[group.rank()]
        return train(sp.parallelize(mine, mesh=group, compile=False), mine, batches(1), implementation)

    assert all(found.is_close_to(right) for found in run_ranks(3, rank))


def sharded(implementation: dict[str, Any], checkpoint: bool) -> Trained:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    model, replica = llama(), mesh["dp"].get_local_rank()
    run = sp.fully_shard(model, mesh, compile=False, checkpoint=checkpoint)
    return train(run, model, [ids[replica : replica + 1] for ids in batches(2)], implementation)


@pytest.mark.parametrize(("name", "checkpoint"), [("foreach", False), ("fused", True)])
def test_sharded_parameters(name: str, checkpoint: bool, world4: ProcessWorld) -> None:
    model, implementation = llama(), IMPLEMENTATIONS[name]
    right = train(model, model, batches(2), implementation)
    assert all(found.is_close_to(right) for found in world4.run(sharded, implementation, checkpoint))
