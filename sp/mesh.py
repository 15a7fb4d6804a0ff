"""Meshes: which ranks share a sequence, along one axis or two, and whether the strategy takes that.

    parallelize(model, "striped", mesh=mesh["sp"])
    parallelize(model, "usp", mesh=init_device_mesh("cuda", (2, 8), mesh_dim_names=("ring", "ulysses")))

The first axis of two is the outer one, over slow links; ranks along the second one are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from sp.errors import StrategyError
from sp.runtime.comm import axes_name
from sp.strategy import Strategy


@dataclass(frozen=True)
class MeshGroups:
    """A mesh of two axes for those who have process groups and no DeviceMesh: this rank's three.

    whole: of all ranks; rank r of it is rank r // inner.size() of `outer` and rank r % inner.size() of `inner`."""

    whole: dist.ProcessGroup
    outer: dist.ProcessGroup
    inner: dist.ProcessGroup

    @property
    def name(self) -> str:
        """What `sp.runtime.comm.find_world` finds this rank's world by."""
        return axes_name(*(group.group_name for group in (self.whole, self.outer, self.inner)))

    @property
    def shape(self) -> tuple[int, int]:
        return self.outer.size(), self.inner.size()


Mesh = DeviceMesh | dist.ProcessGroup | MeshGroups | None


def axes_of(mesh: Mesh) -> int:
    """How many axes there are to spread a sequence along: 1 or more."""
    if isinstance(mesh, DeviceMesh):
        return mesh.ndim
    return 2 if isinstance(mesh, MeshGroups) else 1


def mesh_size(size: int | tuple[int, int]) -> tuple[int, ...]:
    """The shape of a world without process groups; StrategyError for one without ranks."""
    shape = (size,) if isinstance(size, int) else tuple(size)
    if min(shape) < 1:
        raise StrategyError(f"a world of {' x '.join(map(str, shape))} ranks", needed="at least one rank")
    return shape


_ONE = "pass one axis of it, as in mesh['sp']"
_TWO = 'mesh=init_device_mesh("{device}", {shape}, mesh_dim_names={axes})'


def bind_mesh(strategy: Strategy, mesh: Mesh) -> tuple[Strategy, str]:
    """The strategy on this mesh, and the name of the world; "" is a world of one.  May make a group: all ranks call it.

    StrategyError: the mesh has not the axes that the strategy takes, or its ranks are in another order."""
    if isinstance(mesh, DeviceMesh):
        bound = _checked(strategy, tuple(mesh.shape), mesh.mesh_dim_names, _ONE, _TWO, mesh.device_type)
        return bound, _groups_of(mesh).name if strategy.axes else mesh.get_group().group_name
    world = dist.group.WORLD if mesh is None and dist.is_initialized() else mesh
    if world is None:  # no process group at all
        return strategy.on((1,) * len(strategy.axes)), ""
    if isinstance(world, MeshGroups):
        bound = _checked(strategy, world.shape, None, _ONE, _TWO)
        _check_order([world.whole.rank()], [world.outer.rank() * world.inner.size() + world.inner.rank()])
        return bound, world.name
    if isinstance(world, dist.ProcessGroup):
        return _checked(strategy, (world.size(),), None, _ONE, _TWO), world.group_name
    raise StrategyError(f"mesh is a {type(world).__name__}", needed="a DeviceMesh, process groups or None")


def bind_size(strategy: Strategy, size: int | tuple[int, int]) -> tuple[Strategy, int]:
    """The strategy on a world of this size without any process group, and how many ranks that is."""
    shape = mesh_size(size)
    return _checked(strategy, shape, None, f"world_size={prod(shape)}", "world_size={shape}"), prod(shape)


def _checked(
    strategy: Strategy, shape: tuple[int, ...], names: tuple[str, ...] | None, one: str, two: str, device: str = "cpu"
) -> Strategy:
    """names: of the axes.  one, two: what to write for a mesh of so many axes."""
    if strategy.takes(len(shape)):
        return strategy.on(shape)
    found = f"the mesh has {len(shape)} ax{'is' if len(shape) == 1 else 'es'}: {names or shape}"
    if not strategy.axes:
        raise StrategyError(found, needed="one axis, the one along which the sequence is spread", remedy=one)
    outer, inner = strategy.axes
    raise StrategyError(
        found,
        needed=f"two axes for {strategy.name}: {outer} (outer, slow links) and {inner} (inner, neighbouring ranks)",
        remedy=two.format(device=device, shape=_split(prod(shape)), axes=strategy.axes),
    )


def _split(size: int) -> tuple[int, int]:
    """A mesh of two axes with as many ranks."""
    outer = next((n for n in range(2, size) if size % n == 0), 1)
    return outer, size // outer


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


def _check_order(found: list[int], needed: list[int]) -> None:
    if found != needed:
        raise StrategyError(
            f"row after row the ranks of the mesh are {found}",
            needed=f"{needed}: neighbours along the second axis",
            remedy="mesh=init_device_mesh(device_type, (outer, inner)) orders them so",
        )
