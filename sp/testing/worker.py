"""One rank of a `ProcessWorld`, seen from inside its process: join the world, then answer jobs until told to end."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import multiprocessing
import os
import shutil
import signal
import threading
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_FOREVER = timedelta(days=1)  # the parent keeps the time, and ends whoever exceeds it


@dataclass(frozen=True, slots=True)
class Seat:
    """Which rank a process is, and the directory where the ranks of its world meet."""

    rank: int
    world: int
    threads: int
    directory: Path

    @property
    def rendezvous(self) -> Path:
        return self.directory / "store"

    @property
    def stack(self) -> Path:
        """The file for the Python stack when the process is sent SIGUSR1; there once it can be sent."""
        return self.directory / f"stack{self.rank}"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a job: the packed value, or the formatted traceback and when it was raised."""

    value: bytes = b""
    failure: str = ""
    failed_at: float = 0.0


def pack(value: object) -> bytes:
    """Pickles with tensors by value (multiprocessing's own pickler would share their memory by file descriptor)."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpack(packed: bytes) -> Any:
    return torch.load(io.BytesIO(packed), weights_only=False)


def serve(seat: Seat, parent: Connection) -> None:
    """The main function of the process: an empty reply when the world is complete, then one per job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent ends us
    threading.Thread(target=_end_with_parent, args=(seat.directory,), daemon=True).start()
    torch.set_num_threads(seat.threads)
    with seat.stack.with_suffix(".new").open("w") as stack:
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
        Path(stack.name).rename(seat.stack)
        store = dist.FileStore(str(seat.rendezvous), seat.world)
        dist.init_process_group("gloo", timeout=_FOREVER, world_size=seat.world, rank=seat.rank, store=store)
        parent.send(Reply())
        with contextlib.suppress(EOFError):  # the parent hung up: the end
            while True:
                parent.send(_answer(parent.recv_bytes()))
        dist.destroy_process_group()


def _answer(job: bytes) -> Reply:
    try:
        fn, args = unpack(job)
        return Reply(value=pack(fn(*args)))
    except BaseException:  # noqa: BLE001  (the parent raises it)
        return Reply(failure=traceback.format_exc(), failed_at=time.monotonic())


def _end_with_parent(directory: Path) -> None:
    """A rank that waits for its peers does not hear that the parent was killed."""
    if parent := multiprocessing.parent_process():
        parent.join()
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)
