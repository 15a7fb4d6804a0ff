"""Meshes: which ranks share a sequence, along one axis or two, and whether the strategy takes that.

    parallelize(model, "striped", mesh=mesh["sp"])
    parallelize(model, "usp", mesh=init_device_mesh("cuda", (2, 8), mesh_dim_names=("ring", "ulysses")))

The first axis of two is the outer one, over slow links; ranks along the second one are neighbours.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import cast

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from sp.errors import StrategyError
from sp.runtime.world import axes_name, find_world
from sp.strategy import Strategy, place


@dataclass(frozen=True)
class MeshGroups:
    """A mesh of two axes for those who have process groups and no DeviceMesh: this rank's three.

        >>> def two_axes(groups):  # what run_mesh makes is such a mesh
        ...     mesh = sp.MeshGroups(groups.whole, groups.outer, groups.inner)
        ...     return mesh.shape, " with axes " in mesh.name, sp.parallelize(model, "usp", mesh=mesh).layout.name
        >>> sp.testing.run_mesh((2, 2), two_axes)[0]
        ((2, 2), True, 'striped/2')

    whole: of all ranks; rank r of it is rank r // inner.size() of `outer` and rank r % inner.size() of `inner`."""

    whole: dist.ProcessGroup
    outer: dist.ProcessGroup
    inner: dist.ProcessGroup

    @property
    def name(self) -> str:
        """What `sp.runtime.world.find_world` finds this rank's world by."""
        return axes_name(*(group.group_name for group in (self.whole, self.outer, self.inner)))

    @property
    def shape(self) -> tuple[int, int]:
        """How many ranks the outer axis has, and the inner one."""
        return self.outer.size(), self.inner.size()


Mesh = DeviceMesh | dist.ProcessGroup | MeshGroups | None


_ONE = "pass one axis of it, as in mesh['sp']"
_TWO = 'mesh=init_device_mesh("{device}", {shape}, mesh_dim_names={axes})'


def bind_mesh(strategy: Strategy | None, mesh: Mesh) -> tuple[Strategy | None, str]:
    """The strategy on this mesh, and the name of the world; "" is a world of one.  May make a group: all ranks call it.

    strategy: None is any that takes so many axes.
    StrategyError: the mesh has not the axes that the strategy takes, or its ranks are in another order."""
    if isinstance(mesh, DeviceMesh):
        _check_part(mesh.get_coordinate() is not None)
        two = _TWO.replace("{device}", mesh.device_type)
        bound = place(strategy, tuple(mesh.shape), _ONE, two, mesh.mesh_dim_names)
        return bound, _groups_of(mesh).name if mesh.ndim == 2 else mesh.get_group().group_name
    two, world = _TWO.replace("{device}", "cpu"), dist.group.WORLD if mesh is None and dist.is_initialized() else mesh
    if world is None:  # no process group at all
        _warn_if_launched()
        return None if strategy is None else strategy.on((1,) * len(strategy.axes)), ""
    if isinstance(world, MeshGroups):
        bound = place(strategy, world.shape, _ONE, two)
        _check_order([world.whole.rank()], [world.outer.rank() * world.inner.size() + world.inner.rank()])
        return bound, world.name
    _check_part(cast(object, world) is not dist.GroupMember.NON_GROUP_MEMBER)
    if isinstance(world, dist.ProcessGroup):
        find_world(_name(world))  # alive
        return place(strategy, (world.size(),), _ONE, two), world.group_name
    raise StrategyError(f"mesh is a {type(world).__name__}", needed="a DeviceMesh, process groups or None")


def _warn_if_launched() -> None:
    """A world of one is how to try a script; under torchrun it is a forgotten line."""
    if dist.is_torchelastic_launched():
        warnings.warn(
            "torchrun has started this process, but there is no process group: each process runs the whole sequence. "
            "Call torch.distributed.init_process_group() before sp",
            stacklevel=4,
        )


def _groups_of(mesh: DeviceMesh) -> MeshGroups:
    ranks: list[int] = mesh.mesh.flatten().tolist()
    _check_order(ranks, sorted(ranks))
    return MeshGroups(_whole(mesh, len(ranks)), mesh.get_group(0), mesh.get_group(1))


def _whole(mesh: DeviceMesh, size: int) -> dist.ProcessGroup:
    """The group of all ranks of a mesh."""
    if dist.group.WORLD is not None and size == dist.group.WORLD.size():
        return dist.group.WORLD
    if mesh.mesh_dim_names is None:
        raise StrategyError(
            "the axes of the mesh have no names, and it is a part of the world",
            remedy='name them: DeviceMesh(device_type, ranks, mesh_dim_names=("outer", "inner"))',
        )
    return mesh._flatten().get_group()


def _check_part(is_part: bool) -> None:
    if not is_part:
        remedy = "parallelize on its ranks alone, or make one of all ranks"
        raise StrategyError("this rank is no part of the mesh", remedy=remedy)


def _name(group: dist.ProcessGroup) -> str:
    try:
        return group.group_name
    except (RuntimeError, ValueError, KeyError) as error:  # of a group that is gone
        raise StrategyError("the process group has no name any more", needed="one that is alive") from error


def _check_order(found: list[int], needed: list[int]) -> None:
    if found != needed:
        raise StrategyError(
            f"row after row the ranks of the mesh are {found}",
            needed=f"{needed}: neighbours along the second axis",
            remedy="mesh=init_device_mesh(device_type, (outer, inner)) orders them so",
        )
