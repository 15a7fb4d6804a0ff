"""gloo for tensors of a GPU: by way of the host's memory.

gloo sends from one rank to another only what lies in the host's memory.  With this, several ranks can share one GPU,
which NCCL refuses: tests of a world do not need as many GPUs as ranks.  Nothing overlaps; real worlds use NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def crosses_host(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether tensors of `device` need this: the group's backend for them is gloo, or it has none for them."""
    return device.type != "cpu" and backend_of(group, device) in ("", "gloo")


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """What takes tensors of `device` there: "gloo", "nccl", …; "" is nothing.

    `dist.get_backend` knows no name where there are several, as torch makes them unless told otherwise."""
    known: Any = group  # torch's stubs lack what it says of its backends
    if all(each.type != device.type for each in known._device_types):
        return ""
    return known._get_backend(device).name()


@dataclass(frozen=True)
class HostWork:
    """An exchange under way.  It keeps the host's tensors alive.  arriving: tensors with their places on the host."""

    work: dist.Work
    sent: tuple[Tensor, ...] = ()
    arriving: tuple[tuple[Tensor, Tensor], ...] = ()

    def wait(self) -> bool:
        done = self.work.wait()
        for tensor, host in self.arriving:
            tensor.copy_(host)
        return done


@dataclass(frozen=True)
class HostGroup:
    """What `sp.runtime.comm` calls of a process group, for tensors that the group cannot reach."""

    group: Any

    def send(self, tensors: Sequence[Tensor], to: int, tag: int) -> HostWork:
        sent = _copies(tensors)
        return HostWork(self.group.send(list(sent), to, tag), sent)

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> HostWork:
        places = _places(tensors)
        return HostWork(self.group.recv(list(places), source, tag), (), _pairs(tensors, places))

    def allreduce(self, tensors: Sequence[Tensor], options: Any) -> HostWork:
        sums = _copies(tensors)
        return HostWork(self.group.allreduce(list(sums), options), sums, _pairs(tensors, sums))

    def allgather(self, received: Sequence[Sequence[Tensor]], sent: Sequence[Tensor]) -> HostWork:
        (into,), mine = received, _copies(sent)
        places = _places(into)
        return HostWork(self.group.allgather([list(places)], list(mine)), mine, _pairs(into, places))

    def alltoall_base(self, received: Tensor, sent: Tensor, source: list[int], to: list[int]) -> HostWork:
        (place,), (mine,) = _places([received]), _copies([sent])
        return HostWork(self.group.alltoall_base(place, mine, source, to), (mine,), ((received, place),))


def _copies(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(x.to("cpu", copy=True) for x in tensors)


def _places(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, device="cpu") for x in tensors)


def _pairs(tensors: Sequence[Tensor], places: Sequence[Tensor]) -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple(zip(tensors, places, strict=True))
