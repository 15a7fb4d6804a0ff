"""A trunk inside of a model under DDP, FSDP and ZeRO-1, in real processes: gradients of the mean over the replicas."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import sp
from sp.testing import ProcessWorld
from tests.test_trunks import Found, images, made, worst


def mine(replica: int) -> Tensor:
    """The batch of a replica."""
    return images(9 + replica)


def gradients(model: nn.Module) -> Found:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {
        name.removeprefix("module."): (g.full_tensor() if isinstance(g, DTensor) else g).clone()
        for name, g in found.items()
    }


def shard(model: Any, mesh: DeviceMesh, factor: int) -> None:
    """The trunk, another part, and what is left."""
    for module in (model.encoder, model.decoder, model):
        fully_shard(module, mesh=mesh)
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(float(factor))


def step(kind: str) -> Found:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    model: Any = made()
    sync = kind != "fsdp over all"
    model.encoder = sp.parallelize(model.encoder, mesh=mesh["sp"], sync_gradients=sync, compile=False)
    if kind == "fsdp":
        shard(model, mesh["dp"], 2)
    elif kind == "fsdp over all":  # the ranks of a sequence have parts of the trunk's gradients, and all of the others
        shard(model, mesh._flatten("flat"), 4)
        model.encoder.set_gradient_divide_factor(2.0)
    run = DistributedDataParallel(model) if kind == "ddp" else model  # over all four ranks
    run(mine(mesh["dp"].get_local_rank())).backward()
    found = gradients(model)
    if kind == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.5)
        before = copy.deepcopy(model.state_dict())
        for parameter in model.parameters():
            assert parameter.grad is not None
            torch.distributed.all_reduce(parameter.grad, op=torch.distributed.ReduceOp.SUM)
            parameter.grad /= 4
        optimizer.step()
        found = {name: (before[name] - value) / 0.5 for name, value in model.named_parameters()}
    return {name: value.detach() for name, value in found.items()}


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fsdp over all", "zero"])
def test_a_trunk_beside_what_shards(kind: str, world4: ProcessWorld) -> None:
    right: list[Found] = []
    for replica in range(2):
        model = made()
        model(mine(replica)).backward()
        right.append(gradients(model))
    mean = {name: (right[0][name] + right[1][name]) / 2 for name in right[0]}
    for found in world4.run(step, kind):
        assert worst(found, mean) < 1e-11
