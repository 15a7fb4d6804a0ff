"""`trace`: what all ranks do, in one file for Perfetto or chrome://tracing.

with sp.trace("step.json"):
    model(ids, labels=ids).loss.backward()

rank 0   sp: send … to rank 1 │ sp: attention to keys of rank 0 │ sp: wait for … │ sp: attention to keys of rank 1 …
rank 1   sp: send … to rank 0 │ sp: attention to keys of rank 1 │ sp: wait for … │ sp: attention to keys of rank 0 …
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sp.errors import InputError
from sp.mesh import Mesh, bind_mesh
from sp.runtime.comm import all_gather
from sp.runtime.world import World, find_world


@contextmanager
def trace(path: str | Path, mesh: Mesh = None) -> Generator[torch.profiler.profile]:
    """Record what every rank of `mesh` does inside, and write it to one file.  All ranks call it with the same path.

        >>> with sp.trace("step.json"):
        ...     pmodel(ids, labels=ids).loss.backward()

    path: of a Chrome trace in JSON, in a folder that all ranks see.  mesh: as `sp.parallelize` takes it.
    Yields torch's profiler of this rank.  Ranks are the rows of the trace, their clocks as the machines have them."""
    world = find_world(bind_mesh(None, mesh)[1])
    if not isinstance(path, (str, Path)) or not Path(path).absolute().parent.is_dir():
        raise InputError(f"a trace cannot be written to {path!r}", needed="a file in a folder that is there")
    target, own = Path(path), _part(path, world.rank)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        yield profiler
    profiler.export_chrome_trace(str(own))
    _meet(world)
    if world.rank == 0:
        parts = [_part(path, rank) for rank in range(world.size)]
        target.write_text(json.dumps(merge_traces([json.loads(part.read_text("utf-8")) for part in parts])), "utf-8")
        for part in parts:
            part.unlink()
    _meet(world)


def merge_traces(traces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One Chrome trace of those of all ranks, in order: each is a process of its own, on the clock of rank 0."""
    zero = int(traces[0].get("baseTimeNanoseconds", 0))
    events: list[dict[str, Any]] = []
    for rank, each in enumerate(traces):
        later_us = (int(each.get("baseTimeNanoseconds", 0)) - zero) / 1000
        names = {"process_name": {"name": f"rank {rank}"}, "process_sort_index": {"sort_index": rank}}
        events += [{"ph": "M", "pid": rank, "name": name, "args": value} for name, value in names.items()]
        events += [_moved(event, rank, later_us) for event in each["traceEvents"] if event.get("name") not in names]
    return {**traces[0], "traceEvents": events}


def _moved(event: dict[str, Any], rank: int, later_us: float) -> dict[str, Any]:
    moved = {**event, "pid": rank}
    if "ts" in event:
        moved["ts"] = event["ts"] + later_us
    if "id" in event:  # arrows between events of one rank
        moved["id"] = f"{rank}.{event['id']}"
    return moved


def _part(path: str | Path, rank: int) -> Path:
    target = Path(path)
    return target.with_name(f".{target.name}.{rank}")


def _meet(world: World) -> None:
    """Every rank is here."""
    all_gather(world, torch.zeros(1, dtype=torch.uint8), [(1,)] * world.size, "the end of a trace")
