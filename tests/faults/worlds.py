"""Worlds of processes, one rank of which dies, raises, is slow or never comes; what the others see, and when.

Ranks are forked from a server that has imported torch: a world starts in a moment.  A rank that has ended its step
stays, so that nobody is helped by its end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

import sp
from sp.errors import RankLostError
from sp.models import GPT, GPTConfig
from sp.runtime import comm
from sp.runtime.ops import sums
from tests.decoders import decoder
from tests.faults.bare import LENGTH, Bare
from tests.faults.steps import Step, make_step

EVERYBODY = -1
START_S = 280.0  # for all ranks to be ready, on a machine that does other things too
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Way:
    """strategy: on so many ranks, or a mesh of two axes.  fsdp: dp is the first axis, and the strategy has the second.
    bare: the exchanges of a step without a model, which takes a second to capture.  does: see `make_step`."""

    strategy: str
    shape: tuple[int, ...]
    fsdp: bool = False
    compile: Any = False
    bare: bool = False
    does: str = "train"

    @property
    def world(self) -> int:
        return self.shape[0] * (self.shape[1] if len(self.shape) == 2 else 1)

    def spread(self) -> nn.Module:
        torch.manual_seed(0)
        model = GPT(GPTConfig(61, LENGTH, layers=2, width=24, heads=6)) if self.does != "generate" else decoder("Llama")
        names = ("dp", "sp") if self.fsdp else ("outer", "inner")[: len(self.shape)]
        mesh = init_device_mesh("cpu", self.shape, mesh_dim_names=names)
        if self.bare:
            return Bare(self.strategy, mesh)
        if self.fsdp:
            return sp.fully_shard(model, mesh, self.strategy, compile=self.compile)
        return sp.parallelize(model, strategy=self.strategy, mesh=mesh, compile=self.compile)


@dataclass(frozen=True)
class Fault:
    """kind: kill, raise, interrupt, sleep, leave (a generator, inside of failing_together) or worker (that is killed).
    where: call, forward, backward, sum or checkpoint.  at: behind so many exchanges of forward or backward.
    rank: one, or EVERYBODY.  timeout_s: of all groups.  together: inside `sp.failing_together`.
    tcp: rank 0 holds the store, as without torchrun's agent.  again: who is alive takes the step once more."""

    kind: str
    where: str
    timeout_s: float
    rank: int = 1
    sleep_s: float = 0.0
    together: bool = False
    tcp: bool = False
    again: bool = False
    at: int = 2

    def strike(self) -> None:
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "raise":
            raise IndexError("index out of range in self")
        if self.kind == "interrupt":
            raise KeyboardInterrupt
        if self.kind == "worker":
            os.kill(active_children()[0].pid or 0, signal.SIGKILL)
        if self.kind == "leave":
            left = _inside_of_failing_together()
            next(left)
            left.close()
        time.sleep(self.sleep_s)


def _inside_of_failing_together() -> Generator[None]:
    with sp.failing_together():
        yield


@dataclass(frozen=True)
class Outcome:
    """kind: the name of the error's class, "" of none, "dead" of a process that has ended.  seconds: from the start of
    the step.  ranks: whom the error names.  again: the name of the error's class of the step that followed."""

    kind: str
    text: str = ""
    seconds: float = 0.0
    ranks: tuple[int, ...] = ()
    again: str = "not tried"


def outcomes(way: Way, fault: Fault) -> list[Outcome]:
    """Of all ranks, in order.  TimeoutError where one has nothing to say for too long."""
    with TemporaryDirectory(prefix="sp-faults-") as folder:
        pipes = [CONTEXT.Pipe() for _ in range(way.world)]
        processes = [
            CONTEXT.Process(target=_rank, args=(rank, way, fault, Path(folder), child))
            for rank, (_, child) in enumerate(pipes)
        ]
        try:
            for process, (_, child) in zip(processes, pipes, strict=True):
                process.start()
                child.close()
            return _heard([parent for parent, _ in pipes], START_S + 3 * fault.timeout_s + fault.sleep_s)
        finally:
            for process, (parent, _) in zip(processes, pipes, strict=True):
                parent.close()
                process.kill()
                process.join()


def _heard(pipes: list[Connection], patience_s: float) -> list[Outcome]:
    found, end = dict[int, Outcome](), time.monotonic() + patience_s
    while len(found) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in found]
        for pipe in wait(waiting, max(0.0, end - time.monotonic())) or _nobody(found):
            rank = pipes.index(pipe)
            try:
                found[rank] = pipe.recv()
            except EOFError:
                found[rank] = Outcome("dead")
    return [found[rank] for rank in range(len(pipes))]


def _nobody(found: dict[int, Outcome]) -> list[Connection]:
    raise TimeoutError(f"some ranks hang; of the others {found}")


def _rank(rank: int, way: Way, fault: Fault, folder: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    store = _store(rank, way.world, folder, fault)
    dist.init_process_group("gloo", timeout=timedelta(seconds=START_S), world_size=way.world, rank=rank, store=store)
    model = way.spread()
    step = make_step(way.does, model, folder, _Injected.begin_backward)
    for _ in range(2):
        step(lambda: None)
    dist.barrier()
    for group in list(c10d._world.pg_map):
        c10d._set_pg_timeout(timedelta(seconds=fault.timeout_s), group)
    found = _tried(model, step, fault, folder, fault.rank in (rank, EVERYBODY))
    if fault.again:
        found = replace(found, again=_tried(model, step, replace(fault, where="call"), folder, mine=False).kind)
    pipe.send(found)
    try:
        pipe.recv()  # until the parent hangs up
    except EOFError:
        os._exit(0)


def _store(rank: int, world: int, folder: Path, fault: Fault) -> dist.Store:
    if not fault.tcp:
        return dist.FileStore(str(folder / "store"), world)
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, world, is_master=True, wait_for_workers=False)
        (folder / "port.new").write_text(str(server.port))
        (folder / "port.new").rename(folder / "port")
        return server
    while not (folder / "port").exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int((folder / "port").read_text()), world, is_master=False)


def _tried(model: nn.Module, step: Step, fault: Fault, folder: Path, mine: bool) -> Outcome:
    strike = (lambda: None) if not mine else _inject(fault)
    begin = time.monotonic()
    try:
        if not fault.together:
            step(strike)
        else:
            with sp.failing_together(during="step 3"):
                step(strike)
                if fault.where == "checkpoint":
                    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder / "checkpoint")
    except BaseException as error:  # noqa: BLE001  (the parent judges it)
        ranks = error.ranks if isinstance(error, RankLostError) else ()
        return Outcome(type(error).__name__, str(error), time.monotonic() - begin, ranks)
    return Outcome("", seconds=time.monotonic() - begin)


class _Injected:
    """What counts exchanges, in the process of the rank that is to fail."""

    backward = False

    @classmethod
    def begin_backward(cls) -> None:
        cls.backward = True


def _inject(fault: Fault) -> Callable[[], None]:
    """What to call at the start of the step; the fault is there already, or comes later."""
    if fault.where == "call":
        return fault.strike
    if fault.where == "checkpoint":
        before(FileSystemWriter, "write_data", fault.strike)
    elif fault.where == "sum":
        before(sums, "start_sum", fault.strike)
        before(_fsdp_param_group, "foreach_reduce", fault.strike)  # FSDP's
    else:
        counted = iter(range(1000))
        _Injected.backward = False

        def count() -> None:
            if _Injected.backward == (fault.where == "backward") and next(counted) == fault.at:
                fault.strike()  # in the middle of an attention, behind what ranks say before a call

        before(comm, "_reaching", count)
    return lambda: None


def before(owner: Any, name: str, do: Callable[[], None]) -> None:
    original = getattr(owner, name)

    def instead(*args: Any, **keywords: Any) -> Any:
        do()
        return original(*args, **keywords)

    setattr(owner, name, instead)
