"""What a process holds, as numbers that do not grow where nothing leaks.

Resident memory is none of these: an allocator keeps what is freed, in pages between what is not, and gives it back late
and in pieces of megabytes.  What is in use it knows to the byte: glibc of what C++ and large objects of Python have,
Python of its small objects.
"""

import ctypes
import functools
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed import distributed_c10d as c10d

import sp


@dataclass(frozen=True)
class Reading:
    """rss: bytes.  used: bytes that malloc has given to somebody.  blocks: small objects of Python, of all kinds.
    groups: entries of torch's tables of process groups.  captures: that the model keeps.  plans: entries of sp's
    caches.  objects: that the garbage collector knows, after it has run.  profiling: whether a profiler is on."""

    step: int
    rss: int
    used: int
    blocks: int
    fds: int
    threads: int
    groups: int
    captures: int
    plans: int
    objects: int
    profiling: bool

    @staticmethod
    def of(step: int, model: sp.ParallelModule) -> "Reading":
        gc.collect()
        return Reading(
            step,
            int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            used(),
            sys.getallocatedblocks(),
            len(os.listdir("/proc/self/fd")),
            len(os.listdir("/proc/self/task")),
            groups(),
            len(model.executables),
            sum(cache.cache_info().currsize for cache in caches()),
            len(gc.get_objects()),
            torch.autograd._profiler_enabled(),
        )


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _names = ("arena", "ordblks", "smblks", "hblks", "mapped", "usmblks", "fsmblks", "in_use", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def used() -> int:
    """Bytes in use, of all arenas and of what malloc has mapped by itself.  Needs glibc 2.33."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    return found.in_use + found.mapped


def groups() -> int:
    """Of torch's own tables: by group, by name, by tag."""
    world = c10d._world
    return sum(map(len, (world.pg_map, world.pg_names, world.pg_group_ranks, world.tags_to_pg, world.pg_to_tag)))


def caches() -> Iterator["functools._lru_cache_wrapper[object]"]:
    """Every cache of a function of `sp`."""
    for thing in gc.get_objects():
        if type(thing) is functools._lru_cache_wrapper and str(thing.__module__).startswith("sp."):
            yield thing


def objects_by_type() -> Counter[str]:
    gc.collect()
    return Counter(f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in gc.get_objects())


def python_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate())


def growth(readings: Sequence[Reading], name: str = "used") -> float:
    """What is added to it with each step, over the second half: the first half fills caches.

    From the lowest of the third quarter to the lowest of the fourth: what happens to be there while one reads comes and
    goes, what leaks raises the floor."""
    half = readings[len(readings) // 2 :]
    middle = len(half) // 2
    before, after = (min(part, key=lambda each: getattr(each, name)) for part in (half[:middle], half[middle:]))
    return (getattr(after, name) - getattr(before, name)) / (after.step - before.step)
