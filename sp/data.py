"""Batches: ranks that share a sequence read one stream, others read others.

mesh = init_device_mesh("cuda", (4, 8), mesh_dim_names=("dp", "sp"))
loader = DataLoader(dataset, batch_size=2, sampler=sp.data.sampler(dataset, mesh))     # 4 streams for 32 ranks
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import Dataset, DistributedSampler

from sp.errors import InputError, StrategyError
from sp.given import check_kind, check_sequence_dim
from sp.mesh import Mesh, MeshGroups
from sp.module import ParallelModule
from sp.runtime.comm import all_gather
from sp.runtime.host import backend_of
from sp.runtime.shards import BoundLayout
from sp.runtime.world import find_world

__all__ = ["Stream", "cut", "sampler", "sequence_groups", "stream"]


@dataclass(frozen=True)
class Stream:
    """Which of `count` streams of batches a rank reads: all ranks that share a sequence the same one.

    >>> sp.data.stream(pmodel) == sp.data.Stream(number=0, count=1)
    True
    """

    number: int
    count: int


def stream(mesh: Mesh | ParallelModule, *, axis: str | Sequence[str] = "sp") -> Stream:
    """The stream of this rank.

        >>> sp.data.stream(pmodel)
        Stream(number=0, count=1)

    mesh: a DeviceMesh with `axis` (two names, for strategies of two axes) and others, along which batches differ; or
        what `sp.parallelize` took, or the parallelized model: then all ranks of the world call it together, and each
        group of ranks is a stream.

    StrategyError where such a mesh has no such axis, or the groups of the ranks are of different sizes."""
    axes = [axis] if isinstance(axis, str) else list(axis)
    if isinstance(mesh, DeviceMesh) and mesh.mesh_dim_names and set(axes) < set(mesh.mesh_dim_names):
        return _along_the_others(mesh, axes)
    if isinstance(mesh, DeviceMesh) and mesh.ndim > len(axes):
        raise StrategyError(
            f"the mesh has the axes {list(mesh.mesh_dim_names or range(mesh.ndim))}",
            needed=f"{' and '.join(map(repr, axes))} among them, along which the sequence is spread",
            remedy="say which they are, as in axis='cp'",
        )
    if mesh is not None and not isinstance(mesh, (DeviceMesh, dist.ProcessGroup, MeshGroups, ParallelModule)):
        raise StrategyError(f"mesh is a {type(mesh).__name__}", needed="a mesh, or a parallelized model")
    return _of_groups(_ranks_of(mesh))


def _along_the_others(mesh: DeviceMesh, axes: Sequence[str]) -> Stream:
    """Numbered row after row."""
    place = mesh.get_coordinate()
    assert place is not None, "a rank asks for its own mesh"
    number, count = 0, 1
    for dim, name in enumerate(mesh.mesh_dim_names or ()):
        if name not in axes:
            number, count = number * mesh.size(dim) + place[dim], count * mesh.size(dim)
    return Stream(number, count)


def _ranks_of(mesh: Mesh | ParallelModule) -> list[int]:
    """The ranks, of the world, that share a sequence with this one."""
    if isinstance(mesh, ParallelModule):
        mesh = find_world(mesh.options.group).group
        if mesh is None:  # a world of one, whatever there is besides
            return [dist.get_rank() if dist.is_initialized() else 0]
    elif isinstance(mesh, MeshGroups):
        mesh = mesh.whole
    if isinstance(mesh, DeviceMesh):
        return mesh.mesh.flatten().tolist()
    if not dist.is_initialized():
        return [0]
    return dist.get_process_group_ranks(mesh)


def _of_groups(mine: list[int]) -> Stream:
    groups = sequence_groups(mine)
    return Stream(groups.index(tuple(mine)), len(groups))


def sequence_groups(mine: Sequence[int]) -> list[tuple[int, ...]]:
    """The groups of ranks that share a sequence, in order; every rank says with whom it does, all together.

        >>> sp.data.sequence_groups([0])
        [(0,)]

    StrategyError where they are of different sizes, or do not make up the world."""
    if not dist.is_initialized():
        return [tuple(mine)]
    said = _said_by_all(mine)
    groups = sorted(set(said))
    if sum(map(len, groups)) != len(said) or len({len(ranks) for ranks in groups}) > 1:
        raise StrategyError(
            f"the ranks of a sequence are {[list(ranks) for ranks in groups]}",
            needed=f"groups of one size, and each of the {len(said)} ranks in one of them",
            remedy="DistributedSampler(dataset, num_replicas, rank), with the numbers of your own streams",
        )
    return groups


def _said_by_all(mine: Sequence[int]) -> list[tuple[int, ...]]:
    """By numbers, and not by `all_gather_object`, which would unpickle what comes from other machines."""
    group = dist.group.WORLD
    assert group is not None, "asked for where there is one"
    world, cpu = find_world(group.group_name), torch.device("cpu")
    reached = cpu if backend_of(group, cpu) else torch.accelerator.current_accelerator()
    row = torch.full((world.size,), -1)
    row[: len(mine)] = torch.tensor(mine)
    rows = all_gather(world, row.to(reached), [(world.size,)] * world.size)
    return [tuple(rank for rank in each.tolist() if rank >= 0) for each in rows]


def sampler(
    dataset: Dataset[Any],
    mesh: Mesh | ParallelModule,
    *,
    axis: str | Sequence[str] = "sp",
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
) -> DistributedSampler[Any]:
    """torch's DistributedSampler with one replica for all ranks that share a sequence, see `stream`.

        >>> documents = ["one", "two", "three"]
        >>> sampler = sp.data.sampler(documents, pmodel, shuffle=False)
        >>> [documents[number] for number in sampler]
        ['one', 'two', 'three']

    Call its `set_epoch` as always."""
    mine = stream(mesh, axis=axis)
    return DistributedSampler(
        dataset, num_replicas=mine.count, rank=mine.number, shuffle=shuffle, seed=seed, drop_last=drop_last
    )


def cut(batch: Mapping[str, Any], layout: BoundLayout, dim: int | Mapping[str, int] = 1) -> dict[str, Any]:
    """A batch that every rank has whole → this rank's shard of each tensor, for `inputs="local"`.

        >>> batch = {"input_ids": torch.arange(6)[None], "name": "six"}
        >>> def mine(group):
        ...     return sp.data.cut(batch, sp.parallelize(model, "striped", mesh=group).layout)
        >>> sp.testing.run_ranks(2, mine)
        [{'input_ids': tensor([[0, 2, 4]]), 'name': 'six'}, {'input_ids': tensor([[1, 3, 5]]), 'name': 'six'}]

    dim: where the tensors hold the sequence, or a dim for each that does, by name.  For one number, tensors without
    such a dim, or with one element there, stay as they are, as does what is no tensor.

    InputError for sequences of different lengths and for names that the batch lacks."""
    check_kind("batch", batch, (Mapping,), "a dict of tensors, as a loader gives it", InputError)
    check_sequence_dim(dim)
    if isinstance(dim, int):
        dims = {name: dim for name, x in batch.items() if _has(x, dim) and x.size(dim) > 1}
    elif wrong := [name for name, at in dim.items() if not _has(batch.get(name), at)]:
        raise InputError(
            f"{wrong[0]!r} has no dim {dim[wrong[0]]}" if wrong[0] in batch else f"the batch has no {wrong[0]!r}",
            needed=f"tensors among: {', '.join(batch)}, each with the dim of the sequence",
        )
    else:
        dims = dict(dim)
    lengths = {name: batch[name].size(at) for name, at in dims.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(
            f"the tensors hold sequences of different lengths: {lengths}",
            needed="one sequence",
            remedy="say which tensors hold it, as in dim={'input_ids': 1, 'labels': 1}",
        )
    return {name: layout.shard(x, dims[name]) if name in dims else x for name, x in batch.items()}


def _has(x: object, dim: int) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and -x.dim() <= dim < x.dim()
