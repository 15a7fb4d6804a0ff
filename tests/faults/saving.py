"""Two ranks that save twice by way of examples/restart.py; the second time, one of them is killed at a given point."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from tests.faults.worlds import CONTEXT, before

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from restart import Checkpoints, Run

WORLD, TIMEOUT_S = 2, 20.0
# where → (rank, whose function, its name, at which call from the start of the second save)
POINTS: dict[str, tuple[int, Any, str, int]] = {
    "before anything is written": (1, FileSystemWriter, "write_data", 0),
    "when all is written but what says so": (0, FileSystemWriter, "finish", 0),
    "before the folder is given its name": (0, pathlib.Path, "rename", 1),  # the first is torch's, of the metadata
    "before an old one is removed": (0, shutil, "rmtree", 0),
}


def save_and_be_killed(folder: Path, point: str) -> list[int | None]:
    """The exit codes of the ranks, which have saved steps 1, 2 and 3."""
    return _world(_save, folder, point)


def resumed(folder: Path) -> tuple[int, Tensor]:
    """What two ranks find there: how many steps, and the weights."""
    assert _world(_resume, folder, "") == [0] * WORLD
    return torch.load(folder / "found")


def weights(step: int) -> Tensor:
    return torch.full((3, 3), float(step))


def _world(fn: Callable[..., None], folder: Path, point: str) -> list[int | None]:
    store = folder / f"store-{fn.__name__}"
    processes = [CONTEXT.Process(target=fn, args=(rank, folder, store, point), daemon=True) for rank in range(WORLD)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        process.kill()
    return [process.exitcode for process in processes]


def _joined(rank: int, store: Path) -> Run:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(
        "gloo", timeout=timeout, world_size=WORLD, rank=rank, store=dist.FileStore(str(store), WORLD)
    )
    model = nn.Linear(3, 3, bias=False)
    return Run(model, torch.optim.SGD(model.parameters(), lr=0.1))


def _save(rank: int, folder: Path, store: Path, point: str) -> None:
    run, checkpoints = _joined(rank, store), Checkpoints(folder)
    for step in (1, 2, 3):
        run.step = step
        with torch.no_grad():
            run.model.weight.copy_(weights(step))
        if step == 3:
            _arm(rank, *POINTS[point])
        checkpoints.save(run)


def _arm(rank: int, whose: int, owner: Any, name: str, at: int) -> None:
    calls = iter(range(1000))
    if rank == whose:
        before(owner, name, lambda: os.kill(os.getpid(), signal.SIGKILL) if next(calls) == at else None)


def _resume(rank: int, folder: Path, store: Path, point: str) -> None:
    run = _joined(rank, store)
    Checkpoints(folder).resume(run)
    if rank == 0:
        torch.save((run.step, run.model.weight.detach()), folder / "found")
    dist.barrier()
