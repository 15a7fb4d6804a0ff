"""A world of ranks inside this process: one thread per rank, real gloo between them.

Sixteen ranks start and end in a twentieth of a second, a debugger works, nothing is spawned. What threads share, the
ranks share: the random number generator (draw from a `torch.Generator` of your own inside `fn`), the number of
intra-op threads, whatever `fn` closes over. Grad mode and autocast belong to a thread and start at their defaults.
For the CPU only: there backward runs in the rank's own thread; CUDA runs every rank's backward in one, which would
wait for itself.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Generic, TypeVar

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from sp.mesh import MeshGroups
from sp.runtime.notes import close_connections
from sp.testing import gloo

T = TypeVar("T")
Seat = TypeVar("Seat")  # what a rank is given: a group, or the groups of a mesh

_GRACE_S = 1.0  # for the ranks to end after the deadline, once their connections are closed


@dataclass(frozen=True, slots=True)
class _Returned(Generic[T]):
    rank: int
    value: T


@dataclass(frozen=True, slots=True)
class _Raised:
    rank: int
    error: BaseException


def run_ranks(world: int, fn: Callable[[dist.ProcessGroup], T], *, timeout_s: float = 60.0) -> list[T]:
    """Calls `fn(group)` in `world` threads, each with its own rank of one gloo group; returns the values by rank.

        >>> sp.testing.run_ranks(3, lambda group: sp.parallelize(model, mesh=group).layout.positions(7).tolist())
        [[0, 3, 6], [1, 4], [2, 5]]

    `group.send`, `group.recv` and the functional collectives (by `group` or `group.group_name`) work, in backward
    too. There is no default group, and `torch.distributed` stays as it was.

    When a rank raises, all connections are closed, so that nobody waits for it, and its error is raised here, with a
    note that names the rank; what this breaks on other ranks is not reported. After `timeout_s` a TimeoutError shows
    where each unfinished rank stands. Python cannot end a thread that waits for anything but its group: such a rank
    stays behind as a daemon thread, and a note says so.
    """
    if world < 1:
        raise ValueError(f"a world has at least one rank, got world={world}")

    def connect(timeout: timedelta) -> tuple[list[dist.ProcessGroup], list[dist.ProcessGroup]]:
        groups = gloo.connect(world, timeout)
        return groups, groups

    return _run(connect, fn, timeout_s)


def run_mesh(shape: Sequence[int], fn: Callable[[MeshGroups], T], *, timeout_s: float = 60.0) -> list[T]:
    """`run_ranks` on a mesh of two axes, (outer, inner): calls `fn(mesh)`, and `sp.parallelize` takes this `mesh`.

        >>> sp.testing.run_mesh((2, 3), lambda mesh: (mesh.outer.rank(), mesh.inner.rank()))
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]

    Values come by rank, row after row: rank r has the coordinates r // inner and r % inner."""
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"a mesh has two axes of at least one rank each, got shape={tuple(shape)}")
    outer, inner = shape

    def connect(timeout: timedelta) -> tuple[list[MeshGroups], list[dist.ProcessGroup]]:
        whole = gloo.connect(outer * inner, timeout)
        rows = [gloo.connect(inner, timeout) for _ in range(outer)]
        columns = [gloo.connect(outer, timeout) for _ in range(inner)]
        seats = [
            MeshGroups(group, columns[r % inner][r // inner], rows[r // inner][r % inner])
            for r, group in enumerate(whole)
        ]
        return seats, [*whole, *chain(*rows), *chain(*columns)]

    return _run(connect, fn, timeout_s)


def _run(
    connect: Callable[[timedelta], tuple[list[Seat], list[dist.ProcessGroup]]],
    fn: Callable[[Seat], T],
    timeout_s: float,
) -> list[T]:
    """connect: makes what each rank is given, and all groups in it."""
    deadline = time.monotonic() + timeout_s
    # gloo's own timeout lies after ours, which says more.
    seats, groups = connect(timedelta(seconds=2 * timeout_s + 60))
    outcomes: queue.SimpleQueue[_Returned[T] | _Raised] = queue.SimpleQueue()
    _trace_first()
    threads = [_start(rank, fn, seat, outcomes) for rank, seat in enumerate(seats)]
    try:
        return _values(threads, outcomes, deadline)
    except BaseException as error:  # Ctrl-C too
        close_connections(*groups)
        _join(threads, deadline, error)
        raise
    finally:
        gloo.release(groups)
        del seats, groups  # a raised error keeps this frame, which must not keep every rank's group,
        while not outcomes.empty():  # nor may the queue keep the later errors, whose frames keep the queue
            outcomes.get()


def _trace_first() -> None:
    """Enter torch's fake tensors here, before any rank does.

    Where torch is built for CUDA and no GPU is there, the first thread to do so makes a device guard that all later
    ones use; torch 2.11 frees it with that thread (mended in pytorch's pull request 178950). The caller outlives its
    ranks."""
    with FakeTensorMode():
        pass


def _start(
    rank: int,
    fn: Callable[[Seat], T],
    seat: Seat,
    outcomes: queue.SimpleQueue[_Returned[T] | _Raised],
) -> threading.Thread:
    def work(seat: Seat) -> None:
        try:
            outcomes.put(_Returned(rank, fn(seat)))
        except BaseException as error:  # noqa: BLE001  (run_ranks raises it; pytest's skip is one as well)
            outcomes.put(_Raised(rank, error))

    thread = threading.Thread(target=work, args=(seat,), name=f"rank {rank}", daemon=True)
    thread.start()
    return thread


def _values(
    threads: Sequence[threading.Thread],
    outcomes: queue.SimpleQueue[_Returned[T] | _Raised],
    deadline: float,
) -> list[T]:
    """Waits for the ranks; raises the error of the first that fails, or TimeoutError."""
    values: dict[int, T] = {}
    while len(values) < len(threads):
        try:
            outcome = outcomes.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(_where_they_stand(threads, set(values))) from None
        if isinstance(outcome, _Raised):
            outcome.error.add_note(f"on rank {outcome.rank} of {len(threads)}, the first to fail")
            try:
                raise outcome.error
            finally:
                del outcome  # or the error would keep this frame, and this frame the error
        values[outcome.rank] = outcome.value
    _join(threads, deadline, None)
    return [values[rank] for rank in range(len(threads))]


def _where_they_stand(threads: Sequence[threading.Thread], done: set[int]) -> str:
    frames = sys._current_frames()
    lines = [f"{len(threads) - len(done)} of {len(threads)} ranks have not ended in time"]
    for rank, thread in enumerate(threads):
        if rank not in done and (frame := frames.get(thread.ident or 0)):
            stack = [f for f in traceback.extract_stack(frame) if f.filename not in (threading.__file__, __file__)]
            lines += [f"rank {rank} stands at (most recent call last):", *traceback.format_list(stack)]
    return "\n".join(line.rstrip("\n") for line in lines)


def _join(threads: Sequence[threading.Thread], deadline: float, error: BaseException | None) -> None:
    """Waits for the threads, at most until the deadline and a moment; says in the error's notes who stays behind."""
    until = max(deadline, time.monotonic() + _GRACE_S)
    for rank, thread in enumerate(threads):
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive() and error is not None:
            error.add_note(f"rank {rank} could not be stopped: it is left behind as a daemon thread")
