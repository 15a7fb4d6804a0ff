"""gloo groups of one process: every rank of a world, connected to each other, without a default group."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_worlds = itertools.count()  # group names are global to the process, so each world takes a fresh number
_gloo: Any = dist.ProcessGroupGloo  # torch's stub lacks the options and devices it has at run time


def connect(world: int, timeout: timedelta) -> list[dist.ProcessGroup]:
    """One group per rank, all connected, each registered under a name of its own (see `release`)."""
    _check_sockets(world)
    store, number = dist.HashStore(), next(_worlds)
    # One device, so one polling thread, for all ranks. Not lazy: lazy groups on one device never connect, and one
    # that is closed before it has connected hangs.
    device = _gloo.create_device(hostname="127.0.0.1", lazy_init=False)
    with ThreadPoolExecutor(world) as pool:  # each waits for all others
        groups = list(pool.map(lambda rank: _group(store, rank, world, device, timeout), range(world)))
    for rank, group in enumerate(groups):
        name = cast("c10d.GroupName", f"sp.testing.world{number}.rank{rank}")  # older versions lack it
        group._set_group_name(name)
        c10d._register_process_group(name, group)
    return groups


def _check_sockets(world: int) -> None:
    """gloo aborts the process when it cannot open a file."""
    needed, (limit, _) = world * (world - 1) + 64, resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed > limit != resource.RLIM_INFINITY:
        raise ValueError(f"{world} ranks in one process open up to {needed} files, and its limit is {limit}: ulimit -n")


def _group(store: dist.Store, rank: int, world: int, device: Any, timeout: timedelta) -> dist.ProcessGroup:
    options = _gloo._Options()
    options._devices, options._timeout = [device], timeout
    gloo = dist.ProcessGroup.BackendType.GLOO
    group = dist.ProcessGroup(store, rank, world)
    group._register_backend(torch.device("cpu"), gloo, _gloo(store, rank, world, options))
    group._set_default_backend(gloo)
    return group


def release(groups: Sequence[dist.ProcessGroup]) -> None:
    """Takes back the names; a group ends its threads when its last reference goes."""
    for group in groups:
        c10d._unregister_process_group(group.group_name)
