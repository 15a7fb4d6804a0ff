"""Communication between the ranks of one group, each primitive once.

Ranks are always ranks *of the group*.  Every call takes a `World`; a world of one rank never communicates,
because gloo refuses to send to itself.  Sizes are never negotiated: all ranks derive them from the same
integers, since gloo aborts the process when they disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from sp.errors import StrategyError

if TYPE_CHECKING:  # a NewType of str that older versions of torch lack
    from torch.distributed.distributed_c10d import GroupName

_SEAT = " as rank "
# Counts the changes of what ops take and return: code in torch's caches on disk relies on it, and is found without it.
_OPS = 2
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
    assert at == (world.rank, world.size), f"rank {world.rank} of {world.size} is at {at} of the mesh of {group_name!r}"
    assert seat in ("", _seat(world)), f"made for rank {seat}, and this is rank {_seat(world)}"
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
    """The group's name with this rank's place in it, `0 as rank 1 of 4, ops 2`: what a graph that is to be compiled
    calls it.  Of two axes `0 with axes 3 and 5 as rank 1 of 2x2, ops 2`.

    torch finds compiled code in its caches on disk by the text of the graph, and the code holds the sizes of one rank.
    Without the place in the text, rank 1 would run what rank 0 has compiled, or what a world of another size has; and
    without the number, what was compiled for the ops of another version of sp."""
    world = find_world(group_name)
    return group_name if _SEAT in group_name else f"{group_name}{_SEAT}{_seat(world)}"


def _seat(world: World) -> str:
    return f"{world.rank} of {'x'.join(map(str, world.shape))}, ops {_OPS}"


@dataclass(frozen=True)
class Exchange:
    """A send and a receive under way.  It keeps both tensors alive; nobody touches them before `wait`."""

    works: tuple[dist.Work, ...]
    send: Tensor
    receive: Tensor

    def wait(self) -> Tensor:
        """The received tensor, once it is there (on CUDA: once the current stream may use it)."""
        for work in self.works:
            work.wait()
        return self.receive


def post_exchange(world: World, send: Tensor, to: int, receive: Tensor, source: int, tag: int = 0) -> Exchange:
    """Start sending `send` to rank `to` and filling `receive` from rank `source`; returns without waiting.

    Both are contiguous; either may be empty, as long as the other side agrees.  Exchanges under way at the
    same time between the same ranks take different tags (NCCL has none: there, the order of posting counts).
    """
    assert world.group is not None, "a world of one has nobody to exchange with"
    assert world.rank not in (to, source), "a rank does not send to itself"
    assert send.is_contiguous(), "only contiguous tensors travel"
    assert receive.is_contiguous(), "only contiguous tensors travel"
    post = _post_each if send.device.type == "cpu" else _post_batched
    return Exchange(post(world.group, send, to, receive, source, tag), send, receive)


def _post_each(
    group: dist.ProcessGroup, send: Tensor, to: int, receive: Tensor, source: int, tag: int
) -> tuple[dist.Work, ...]:
    """Independent requests, for backends whose sends do not wait for the receiver's call (gloo)."""
    works: list[dist.Work] = []
    if receive.numel():
        works.append(group.recv([receive], source, tag))
    if send.numel():
        works.append(group.send([send], to, tag))
    return tuple(works)


def _post_batched(
    group: dist.ProcessGroup, send: Tensor, to: int, receive: Tensor, source: int, tag: int
) -> tuple[dist.Work, ...]:
    """One batch: NCCL runs requests in order, so that in a ring of separate sends each waits for the next."""
    requests: list[dist.P2POp] = []
    if send.numel():
        requests.append(dist.P2POp(dist.isend, send, group=group, group_peer=to, tag=tag))
    if receive.numel():
        requests.append(dist.P2POp(dist.irecv, receive, group=group, group_peer=source, tag=tag))
    return tuple(dist.batch_isend_irecv(requests)) if requests else ()


def all_reduce(world: World, x: Tensor, op: Any) -> Tensor:
    """All ranks' `x` reduced, the same bits on every rank.  Fresh and contiguous; `x` stays as it is.

    op: of dist.ReduceOp."""
    total = x.clone(memory_format=torch.contiguous_format)
    if world.group is not None and total.numel():
        options = dist.AllreduceOptions()
        options.reduceOp = op
        world.group.allreduce([total], options).wait()
    return total


def all_gather(world: World, x: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Every rank's tensor, in rank order, fresh and contiguous.  `shapes[r]` is the shape that rank r has.

    Sizes may differ: the collective wants equal ones, so the smaller are padded on the way (layouts are
    uneven by one token).  Bytes travel, since backends do not know every dtype."""
    return start_gather(world, x, shapes).wait()


@dataclass(frozen=True)
class Gathering:
    """An all-gather under way.  It keeps its tensors alive; nobody touches them before `wait`."""

    work: dist.Work | None
    send: Tensor
    received: tuple[Tensor, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    def wait(self) -> list[Tensor]:
        """Every rank's tensor (on CUDA: once the current stream may use it)."""
        if self.work is not None:
            self.work.wait()
        sizes = [prod(shape) * self.dtype.itemsize for shape in self.shapes]
        parts = zip(self.received, sizes, self.shapes, strict=True)
        return [flat[:size].view(self.dtype).view(shape) for flat, size, shape in parts]


def start_gather(world: World, x: Tensor, shapes: Sequence[Sequence[int]]) -> Gathering:
    """Start `all_gather`; returns without waiting."""
    assert len(shapes) == world.size, f"{len(shapes)} shapes for {world.size} ranks"
    assert list(x.shape) == list(shapes[world.rank]), f"{x.shape} is not {shapes[world.rank]}, as promised"
    size = max(prod(shape) for shape in shapes) * x.element_size()
    # A single element counts as contiguous whatever its strides are, and a view of other bytes wants 1.
    padded = x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)
    if padded.numel() < size:
        padded = torch.cat([padded, padded.new_zeros(size - padded.numel())])
    received = [padded.clone()] if world.group is None else [padded.new_empty(size) for _ in shapes]
    work = world.group.allgather([received], [padded]) if world.group is not None and size else None
    return Gathering(work, padded, tuple(received), tuple(tuple(shape) for shape in shapes), x.dtype)


def all_to_all(world: World, send: Tensor, to: Sequence[int], source: Sequence[int]) -> Tensor:
    """Of the flat and contiguous `send`, the r-th `to[r]` elements go to rank r; what comes from each, in rank order.

    `source[r]` says how many come from rank r, and must be what that rank sends.  Bytes travel."""
    return start_all_to_all(world, send, to, source).wait()


def start_all_to_all(world: World, send: Tensor, to: Sequence[int], source: Sequence[int]) -> Exchange:
    """Start `all_to_all`; returns without waiting."""
    assert world.group is not None, "a world of one has nobody to exchange with"
    assert send.is_contiguous(), "only contiguous tensors travel"
    assert sum(to) == send.numel(), f"{send.numel()} elements, and {list(to)} to send"
    width = send.element_size()
    received = send.new_empty(sum(source))
    counts = [[count * width for count in side] for side in (source, to)]
    work = world.group.alltoall_base(received.view(torch.uint8), send.view(torch.uint8), *counts)
    return Exchange((work,), send, received)
