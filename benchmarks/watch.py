"""A process group that is watched: what leaves this rank, and how long it waits for what it has asked for.

sp asks a group for `send`, `recv`, `allgather`, `alltoall_base` and `allreduce`; a call of anything else raises
AttributeError here, so that nothing goes uncounted.  Sums that torch starts by the group's name are counted where sp
starts them (`start_sum`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, cast
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

from sp.runtime import ops
from sp.runtime.world import World, find_world


@dataclass
class Watch:
    """Since it was made or reset: bytes that left this rank in exchanges, and seconds inside of `wait`."""

    sent: int = 0
    calls: int = 0
    waited: float = 0.0

    def reset(self) -> None:
        self.sent, self.calls, self.waited = 0, 0, 0.0


@dataclass(frozen=True)
class WatchedWork:
    """An exchange under way."""

    work: dist.Work
    watch: Watch

    def wait(self) -> bool:
        start = time.perf_counter()
        done = self.work.wait()
        self.watch.waited += time.perf_counter() - start
        return done


@dataclass(frozen=True)
class WatchedGroup:
    """What sp calls of a process group, one rank's part of it."""

    group: Any
    watch: Watch

    def rank(self) -> int:
        return self.group.rank()

    def size(self) -> int:
        return self.group.size()

    def recv(self, tensors: list[Tensor], *rest: Any) -> WatchedWork:
        return WatchedWork(self.group.recv(tensors, *rest), self.watch)

    def send(self, tensors: list[Tensor], *rest: Any) -> WatchedWork:
        return self._sending(sum(x.nbytes for x in tensors), self.group.send(tensors, *rest))

    def allgather(self, received: list[list[Tensor]], sent: list[Tensor], *rest: Any) -> WatchedWork:
        return self._sending(sent[0].nbytes * (self.size() - 1), self.group.allgather(received, sent, *rest))

    def alltoall_base(self, received: Tensor, sent: Tensor, source: list[int], to: list[int], *rest: Any) -> Any:
        leaving = (sum(to) - to[self.rank()]) * sent.element_size()
        return self._sending(leaving, self.group.alltoall_base(received, sent, source, to, *rest))

    def allreduce(self, tensors: list[Tensor], *rest: Any) -> WatchedWork:
        return self._sending(self.reduced(tensors), self.group.allreduce(tensors, *rest))

    def reduced(self, tensors: list[Tensor]) -> int:
        """Bytes of a sum as a ring of reductions would send it, whatever the backend does."""
        return 2 * sum(x.nbytes for x in tensors) * (self.size() - 1) // self.size()

    def _sending(self, leaving: int, work: dist.Work) -> WatchedWork:
        self.watch.sent += leaving
        self.watch.calls += 1
        return WatchedWork(work, self.watch)


@contextmanager
def watched(watch_of: Callable[[World, str], Watch]) -> Generator[None]:
    """While it lasts, the ops of sp see groups that are watched; `watch_of(world, module)` by rank and kind of op,
    `attention` for those of attention."""

    def finder(module: str) -> Callable[[str], World]:
        def found(name: str) -> World:
            world = find_world(name)
            if world.group is None:
                return world
            return replace(world, group=cast("dist.ProcessGroup", WatchedGroup(world.group, watch_of(world, module))))

        return found

    with ExitStack() as patches:
        for info in iter_modules(ops.__path__):
            module = import_module(f"{ops.__name__}.{info.name}")
            if hasattr(module, "find_world"):
                patches.enter_context(patch.object(module, "find_world", finder(info.name)))
            if hasattr(module, "start_sum"):
                patches.enter_context(patch.object(module, "start_sum", _counted(module.start_sum)))
        yield


def _counted(start_sum: Callable[[World, Tensor], None]) -> Callable[[World, Tensor], None]:
    """Given a world whose group is watched."""

    def start(world: World, x: Tensor) -> None:
        if isinstance(group := cast("Any", world.group), WatchedGroup):
            group.watch.sent += group.reduced([x])
            group.watch.calls += 1
            world = replace(world, group=group.group)
        start_sum(world, x)

    return start
