"""Communication between the ranks of one group, each primitive once.

Ranks are always ranks *of the group*.  Every call takes a `World`; a world of one rank never communicates,
because gloo refuses to send to itself.  Sizes are never negotiated: all ranks derive them from the same
integers, since gloo aborts the process when they disagree.

On CUDA, NCCL has a stream of its own for each group, which is the stream for communication: posting an exchange makes
it wait for what the current stream has been given so far (what is sent is written by then), returns at once, and the
kernels that are launched next run beside the transfer.  `wait` blocks no thread: it makes the current stream wait for
NCCL's, so that what is launched after it may read what was received.  An `Exchange` or `Gathering` holds its tensors
until then; from there on their memory is reused in the order of the current stream, which is behind the transfer, so
that nothing needs `record_stream`.  Under gloo, tensors of a GPU go by way of the host (`sp.runtime.host`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sp.runtime.faults import Watch
from sp.runtime.host import HostGroup, HostWork, crosses_host
from sp.runtime.spans import span
from sp.runtime.tally import ALL_TO_ALL, EXCHANGE, GATHER, Tally, note_message, note_sum, timers_of_sum, waiting
from sp.runtime.world import World

Work = dist.Work | HostWork
_SUM = "a sum of gradients (all-reduce, {:,} bytes)"


@dataclass(frozen=True)
class Exchange:
    """A send and a receive under way.  It keeps both tensors alive; nobody touches them before `wait`."""

    works: tuple[Work, ...]
    send: Tensor
    receive: Tensor
    watch: Watch
    timers: tuple[Tally, ...] = ()

    def wait(self) -> Tensor:
        """The received tensor, once it is there (on CUDA: once the current stream may use it).  RankLostError."""
        with span("wait for {:,} bytes", self.receive.nbytes), waiting(self.timers), self.watch:
            for work in self.works:
                work.wait()
        return self.receive


def post_exchange(
    world: World,
    send: Tensor,
    to: int,
    receive: Tensor,
    source: int,
    tag: int = 0,
    step: str = "an exchange",
    *values: object,
) -> Exchange:
    """Start sending `send` to rank `to` and filling `receive` from rank `source`; returns without waiting.

    Both are contiguous; either may be empty, as long as the other side agrees.  Exchanges under way at the
    same time between the same ranks take different tags (NCCL has none: there, the order of posting counts).
    step: which one it is, with places for `values`: put together for errors alone.
    """
    assert world.group is not None, "a world of one has nobody to exchange with"
    assert world.rank not in (to, source), "a rank does not send to itself"
    assert send.is_contiguous(), "only contiguous tensors travel"
    assert receive.is_contiguous(), "only contiguous tensors travel"
    group = _reaching(world.group, send.device)
    post = _post_each if send.device.type == "cpu" or isinstance(group, HostGroup) else _post_batched
    timers = note_message(world, EXCHANGE, send.nbytes, receive.nbytes)
    watch = Watch(world, step + " ({:,} bytes)", *values, receive.nbytes, source=source)
    with span("send {:,} bytes to rank {}, receive from rank {}", send.nbytes, to, source), watch:
        return Exchange(post(group, send, to, receive, source, tag), send, receive, watch, timers)


def _reaching(group: dist.ProcessGroup, device: torch.device) -> Any:
    """The group, or what takes its place where it cannot reach tensors of `device`.  Any: both have the same calls."""
    return HostGroup(group) if crosses_host(group, device) else group


def _post_each(group: Any, send: Tensor, to: int, receive: Tensor, source: int, tag: int) -> tuple[Work, ...]:
    """Independent requests, for backends whose sends do not wait for the receiver's call (gloo)."""
    works: list[Work] = []
    if receive.numel():
        works.append(group.recv([receive], source, tag))
    if send.numel():
        works.append(group.send([send], to, tag))
    return tuple(works)


def _post_batched(group: Any, send: Tensor, to: int, receive: Tensor, source: int, tag: int) -> tuple[dist.Work, ...]:
    """One batch: NCCL runs requests in order, so that in a ring of separate sends each waits for the next."""
    requests: list[dist.P2POp] = []
    if send.numel():
        requests.append(dist.P2POp(dist.isend, send, group=group, group_peer=to, tag=tag))
    if receive.numel():
        requests.append(dist.P2POp(dist.irecv, receive, group=group, group_peer=source, tag=tag))
    return tuple(dist.batch_isend_irecv(requests)) if requests else ()


def all_reduce(world: World, x: Tensor, op: Any, what: str = "a reduction") -> Tensor:
    """All ranks' `x` reduced, the same bits on every rank.  Fresh and contiguous; `x` stays as it is.

    op: of dist.ReduceOp.  what: for errors."""
    total = x.clone(memory_format=torch.contiguous_format)
    if world.group is not None and total.numel():
        options = dist.AllreduceOptions()
        options.reduceOp = op
        watch = Watch(world, "{} (all-reduce, {:,} bytes)", what, x.nbytes)
        with span("all-reduce {:,} bytes", total.nbytes), waiting(note_sum(world, total)), watch:
            _reaching(world.group, x.device).allreduce([total], options).wait()
    return total


def start_sum(world: World, x: Tensor) -> None:
    """Start summing all ranks' `x` [n] in place, the same bits on every rank; nobody touches it before `finish_sum`.

    torch keeps the request with the memory of `x`, as it does for its functional collectives."""
    if world.group is not None and x.numel():
        note_sum(world, x, posted=True)
        with span("post a sum of {:,} bytes", x.nbytes), Watch(world, _SUM, x.nbytes):
            torch.ops._c10d_functional.all_reduce_(x, "sum", world.group.group_name)


def finish_sum(world: World, x: Tensor) -> None:
    """Wait for what `start_sum` has started, if anything (on CUDA: until the current stream may use it)."""
    with span("wait for a sum of {:,} bytes", x.nbytes), waiting(timers_of_sum(x)), Watch(world, _SUM, x.nbytes):
        torch.ops._c10d_functional.wait_tensor(x)


def all_gather(world: World, x: Tensor, shapes: Sequence[Sequence[int]], what: str = "a gather") -> list[Tensor]:
    """Every rank's tensor, in rank order, fresh and contiguous.  `shapes[r]` is the shape that rank r has.

    Sizes may differ: the collective wants equal ones, so the smaller are padded on the way (layouts are
    uneven by one token).  Bytes travel, since backends do not know every dtype.  what: for errors."""
    return start_gather(world, x, shapes, what).wait()


@dataclass(frozen=True)
class Gathering:
    """An all-gather under way.  It keeps its tensors alive; nobody touches them before `wait`."""

    work: Work | None
    send: Tensor
    received: tuple[Tensor, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    watch: Watch
    timers: tuple[Tally, ...] = ()

    def wait(self) -> list[Tensor]:
        """Every rank's tensor (on CUDA: once the current stream may use it)."""
        if self.work is not None:
            with span("wait for {:,} bytes of each rank", self.send.nbytes), waiting(self.timers), self.watch:
                self.work.wait()
        sizes = [prod(shape) * self.dtype.itemsize for shape in self.shapes]
        parts = zip(self.received, sizes, self.shapes, strict=True)
        return [flat[:size].view(self.dtype).view(shape) for flat, size, shape in parts]


def start_gather(world: World, x: Tensor, shapes: Sequence[Sequence[int]], what: str = "a gather") -> Gathering:
    """Start `all_gather`; returns without waiting."""
    assert len(shapes) == world.size, f"{len(shapes)} shapes for {world.size} ranks"
    assert list(x.shape) == list(shapes[world.rank]), f"{x.shape} is not {shapes[world.rank]}, as promised"
    size = max(prod(shape) for shape in shapes) * x.element_size()
    # A single element counts as contiguous whatever its strides are, and a view of other bytes wants 1.
    padded = x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)
    if padded.numel() < size:
        padded = torch.cat([padded, padded.new_zeros(size - padded.numel())])
    received = [padded.clone()] if world.group is None else [padded.new_empty(size) for _ in shapes]
    work, timers, watch = None, (), Watch(world, "{} (all-gather, {:,} bytes of each rank)", what, size)
    if world.group is not None and size:
        timers = note_message(world, GATHER, *[size * (world.size - 1)] * 2)
        with span("gather {:,} bytes of each rank", size), watch:
            work = _reaching(world.group, x.device).allgather([received], [padded])
    return Gathering(work, padded, tuple(received), tuple(tuple(shape) for shape in shapes), x.dtype, watch, timers)


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
    group = _reaching(world.group, send.device)
    timers = note_message(world, ALL_TO_ALL, *(sum(side) - side[world.rank] for side in reversed(counts)))
    watch = Watch(world, "an exchange of all with all ({:,} bytes)", received.nbytes)
    with span("all-to-all of {:,} bytes", send.nbytes), watch:
        work = group.alltoall_base(received.view(torch.uint8), send.view(torch.uint8), *counts)
    return Exchange((work,), send, received, watch, timers)
