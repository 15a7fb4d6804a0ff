"""What a process holds, as numbers that do not grow where nothing leaks."""

import functools
import gc
import os
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
    """rss: bytes.  groups: entries of torch's tables of process groups.  captures: that the model keeps.  plans:
    entries of sp's caches.  objects: that the garbage collector knows, after it has run.  profiling: whether a profiler
    is on."""

    step: int
    rss: int
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
            len(os.listdir("/proc/self/fd")),
            len(os.listdir("/proc/self/task")),
            groups(),
            len(model.executables),
            sum(cache.cache_info().currsize for cache in caches()),
            len(gc.get_objects()),
            torch.autograd._profiler_enabled(),
        )


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


def slope(readings: Sequence[Reading]) -> float:
    """Bytes of RSS for each step, by least squares over the second half: the first half fills caches."""
    half = readings[len(readings) // 2 :]
    steps, sizes = [reading.step for reading in half], [reading.rss for reading in half]
    middle, mean = sum(steps) / len(half), sum(sizes) / len(half)
    spread = sum((step - middle) ** 2 for step in steps)
    return sum((step - middle) * (size - mean) for step, size in zip(steps, sizes, strict=True)) / spread
