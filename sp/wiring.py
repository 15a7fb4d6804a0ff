"""`fully_shard`: one call for a mesh, FSDP2 and a parallelized model.

Who sums which gradient, and by what factor: every rank finds its part of each parameter's gradient, of its tokens and
of its share of the batch (`sync_gradients=False`).  FSDP's reduce-scatter adds the parts of all ranks of the mesh, and
divides by the number of replicas of the model's batch alone (`dp`), since losses are means over a replica's tokens;
never by the ranks that share a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from sp.api import parallelize
from sp.errors import StrategyError
from sp.given import check_model
from sp.module import ParallelModule
from sp.passes.output_forms import OutputForm
from sp.runtime.host import backend_of


def fully_shard(
    model: nn.Module,
    mesh: DeviceMesh,
    strategy: str = "striped",
    *,
    axis: str = "sp",
    outputs: OutputForm = "global",
    compile: bool | Mapping[str, Any] = True,  # noqa: A002 - torch's own word for it
    checkpoint: bool = False,
) -> ParallelModule:
    """`model` with its parameters sharded over all of `mesh`, its sequence spread over the axis `axis` of it.

        >>> mesh = torch.distributed.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "sp"))  # ("cuda", (4, 8))
        >>> model = sp.fully_shard(model, mesh)
        >>> optimizer = torch.optim.AdamW(model.parameters())  # after: the parameters are DTensors now

    Blocks are the elements of the model's outermost lists; each is gathered when it runs.  Ranks along `axis` get the
    same batch, ranks along the other axes batches of their own; the gradient is that of the mean of their losses, as
    with DDP.  For other ways to shard, and other options, call torch's `fully_shard` yourself and `sp.parallelize` with
    `sync_gradients=False`; what both take means the same.  Raises StrategyError for a mesh without such an axis."""
    from torch.distributed.fsdp import FSDPModule  # importing sp does not take the time to import FSDP
    from torch.distributed.fsdp import fully_shard as shard_module

    check_model(model)
    names = _names(mesh, axis)
    flat = mesh if mesh.ndim == 1 else mesh._flatten("_".join(names))
    for block in blocks_of(model):
        shard_module(block, mesh=flat)
    shard_module(model, mesh=flat)
    replicas = prod(mesh.size(number) for number, name in enumerate(names) if name != axis)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(float(replicas))
            # gloo knows no sum that multiplies first
            backend = backend_of(flat.get_group(), torch.device(flat.device_type))
            module.set_force_sum_reduction_for_comms(backend == "gloo")
    return parallelize(
        model,
        strategy,
        mesh=mesh[axis],
        sync_gradients=False,
        outputs=outputs,
        compile=compile,
        checkpoint=checkpoint,
    )


def _names(mesh: DeviceMesh, axis: str) -> tuple[str, ...]:
    if not isinstance(mesh, DeviceMesh):
        raise StrategyError(f"mesh is a {type(mesh).__name__}", needed="a DeviceMesh with names for its axes")
    names = mesh.mesh_dim_names or ()
    if axis not in names:
        raise StrategyError(
            f"the mesh has the axes {list(names)}",
            needed=f"one called {axis!r}, along which the sequence is spread",
            remedy='init_device_mesh("cuda", (dp, sp), mesh_dim_names=("dp", "sp"))',
        )
    return names


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The elements of the outermost lists of modules."""
    if isinstance(model, nn.ModuleList):
        return list(model)
    return [block for child in model.children() for block in blocks_of(child)]
