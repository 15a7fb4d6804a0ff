"""Worlds: which ranks share a sequence, by the names under which graphs know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

from sp.errors import StrategyError

if TYPE_CHECKING:  # a NewType of str that older versions of torch lack
    from torch.distributed.distributed_c10d import GroupName

_SEAT = " as rank "
# Counts the changes of what ops take and return: code in torch's caches on disk relies on it, and is found without it.
_OPS = 3
_AXES, _AND = " with axes ", " and "


@dataclass(frozen=True)
class World:
    """The ranks that share one sequence, and which of them this is.  `group` is None in a world of one.

    axes: of a mesh of two, this rank's world along the outer axis and along the inner one: the ranks that differ from
    it in that coordinate alone.  Rank r has the coordinates r // inner.size and r % inner.size."""

    rank: int
    size: int
    group: dist.ProcessGroup | None = None
    axes: tuple[World, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """How many ranks each axis has."""
        return tuple(axis.size for axis in self.axes) or (self.size,)

    @property
    def ranks(self) -> list[int]:
        """What the whole job calls them; of a world of threads, which is in no job, their own numbers."""
        try:
            return [] if self.group is None else dist.get_process_group_ranks(self.group)
        except KeyError:
            return [*range(self.size)]

    @property
    def outer(self) -> World:
        """Along the axis of slow links; a world of one where there is one axis alone."""
        return self.axes[0] if self.axes else World(0, 1)

    @property
    def inner(self) -> World:
        """Along the axis of neighbours; all ranks where there is one axis alone."""
        return self.axes[1] if self.axes else self


def axes_name(whole: str, outer: str, inner: str) -> str:
    """What `find_world` knows a mesh of two axes by: the names of the group of all ranks and of the rank's own two."""
    return f"{whole}{_AXES}{outer}{_AND}{inner}"


def find_world(group_name: str) -> World:
    """The world of a process group's name, of its `seat_name`, or of an `axes_name`; the empty name is a world of one.

    StrategyError: no group of that name is alive, as after `destroy_process_group`."""
    groups, _, seat = group_name.partition(_SEAT)
    if not groups:
        return World(0, 1)
    name, _, axes = groups.partition(_AXES)
    group = _find_group(name)
    found = tuple(World(axis.rank(), axis.size(), axis) for axis in map(_find_group, filter(None, axes.split(_AND))))
    world = World(group.rank(), group.size(), group, found)
    at = (world.outer.rank * world.inner.size + world.inner.rank, world.outer.size * world.inner.size)
    # Raised under `python -O` too: what one rank computes in the place of another is wrong, and nothing else shows it.
    if at != (world.rank, world.size):
        raise AssertionError(f"rank {world.rank} of {world.size} is at {at} of the mesh of {group_name!r}")
    if seat not in ("", _seat(world)):
        raise AssertionError(f"made for rank {seat}, and this is rank {_seat(world)}")
    return world


def _find_group(name: str) -> dist.ProcessGroup:
    try:
        return _resolve_process_group(cast("GroupName", name))
    except (RuntimeError, ValueError, LookupError) as error:
        raise StrategyError(
            f"the process group {name!r} does not exist in this process",
            needed="the group that the model was parallelized over, alive",
            remedy="call it before destroy_process_group, or parallelize the model again over a new group",
        ) from error


def seat_name(group_name: str) -> str:
    """The group's name with this rank's place in it, `0 as rank 1 of 4, ops 3`: what a graph that is to be compiled
    calls it.  Of two axes `0 with axes 3 and 5 as rank 1 of 2x2, ops 3`.

    torch finds compiled code in its caches on disk by the text of the graph, and the code holds the sizes of one rank.
    Without the place in the text, rank 1 would run what rank 0 has compiled, or what a world of another size has; and
    without the number, what was compiled for the ops of another version of sp."""
    world = find_world(group_name)
    return group_name if _SEAT in group_name else f"{group_name}{_SEAT}{_seat(world)}"


def _seat(world: World) -> str:
    return f"{world.rank} of {'x'.join(map(str, world.shape))}, ops {_OPS}"
