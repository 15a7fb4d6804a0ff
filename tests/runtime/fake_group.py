"""Any rank of a world of any size in this thread alone: collectives return at once, with the rank's own data."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeProcessGroup, FakeStore

_numbers = count()


@contextmanager
def fake_group(rank: int, world: int, name: str | None = None, devices: Sequence[str] = ("cpu",)) -> Iterator[str]:
    """The name of a group in which this thread is `rank` of `world`; by default one that was never used.

    devices: what it has a backend for."""
    group = dist.ProcessGroup(FakeStore(), rank, world)
    custom = dist.ProcessGroup.BackendType.CUSTOM
    for device in devices:
        group._register_backend(torch.device(device), custom, FakeProcessGroup._create_internal(rank, world))
    group._set_default_backend(custom)
    registered = c10d.GroupName(name or f"fake{next(_numbers)}")
    group._set_group_name(registered)
    c10d._register_process_group(registered, group)
    try:
        yield registered
    finally:
        c10d._unregister_process_group(registered)
