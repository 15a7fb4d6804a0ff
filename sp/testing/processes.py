"""A world of ranks in processes of their own, each with the gloo default group: what torchrun would start."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NoReturn, TypeVar, TypeVarTuple

from sp.testing.worker import Reply, Seat, pack, serve, unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PATIENCE_S = 5.0  # for a rank to end by itself when the world is closed
_AFTERMATH_S = 0.25  # a dying rank breaks its peers' connections, and their errors may arrive before its death does


class RankFailedError(RuntimeError):
    """A rank raised, in which case the message holds its traceback, or its process died.

    >>> try:
    ...     sp.testing.run_processes(2, torch.zeros, "many")
    ... except sp.testing.RankFailedError as error:
    ...     print(error.rank in (0, 1), "TypeError" in str(error))
    True True
    """

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(rank, message)
        self.rank = rank

    def __str__(self) -> str:
        return self.args[1]


@dataclass(frozen=True, slots=True)
class _Rank:
    seat: Seat
    process: SpawnProcess
    connection: Connection

    def reply(self) -> Reply | None:
        """The reply that has arrived; None when the process is dead."""
        try:
            return self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            return None

    def death(self) -> str:
        self.process.join(_PATIENCE_S)
        code = self.process.exitcode
        if code is None:
            return "closed its connection"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "ended"
        return f"{how} (exit code {code})"

    def stack(self) -> str:
        """Where the process stands, as it writes when it is sent SIGUSR1."""
        stack = self.seat.stack
        return stack.read_text() if stack.exists() else "(not started yet)\n"

    def end(self, patience_s: float) -> None:
        self.connection.close()
        self.process.join(patience_s)
        self.process.kill()
        self.process.join()
        self.process.close()


def run_processes(
    world: int,
    fn: Callable[[*Ts], T],
    *args: *Ts,
    timeout_s: float = 120.0,
    threads_per_rank: int = 1,
) -> list[T]:
    """`ProcessWorld.run` in a world of its own, which costs the import of torch in every rank.

    >>> sp.testing.run_processes(2, torch.distributed.get_rank)
    [0, 1]
    """
    with ProcessWorld(world, threads_per_rank) as ranks:
        return ranks.run(fn, *args, timeout_s=timeout_s)


class ProcessWorld:
    """`world` processes that live from the first `run` to the end of the `with` block, or to the first failure.

        >>> with sp.testing.ProcessWorld(2) as world:
        ...     ranks = world.run(torch.distributed.get_rank)
        ...     sizes = world.run(torch.distributed.get_world_size)
        >>> ranks, sizes
        ([0, 1], [2, 2])
        >>> world.close()  # as the end of the block has done

    A failure ends all ranks, since gloo groups do not survive it; the next `run` starts new ones. Between runs a rank
    keeps its state: random number generator, imported modules, caches of torch.compile.
    """

    def __init__(self, world: int, threads_per_rank: int = 1) -> None:
        if world < 1 or threads_per_rank < 1:
            raise ValueError(f"at least one rank with one thread, got {world=}, {threads_per_rank=}")
        self.world = world
        self.threads_per_rank = threads_per_rank
        self._ranks: list[_Rank] = []
        self._directory: TemporaryDirectory[str] | None = None

    def __enter__(self) -> ProcessWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def run(self, fn: Callable[[*Ts], T], *args: *Ts, timeout_s: float = 120.0) -> list[T]:
        """Calls `fn(*args)` on every rank and returns the values by rank.

        `fn` must be importable (defined at the top of a module), arguments and values picklable; tensors are copied.
        Raises RankFailedError when a rank raises or dies, TimeoutError with the stacks of the unfinished ranks.
        """
        deadline = time.monotonic() + timeout_s
        job = pack((fn, args))
        try:
            if not self._ranks:
                self._start(deadline)
            for rank in self._ranks:
                with contextlib.suppress(OSError):  # a dead rank: found when its reply is awaited
                    rank.connection.send_bytes(job)
            return [unpack(value) for value in self._gather(deadline)]
        except BaseException:  # Ctrl-C too
            self._end(patience_s=0)
            raise

    def close(self) -> None:
        """Ends the ranks; the next `run` would start new ones."""
        self._end(_PATIENCE_S)

    def _start(self, deadline: float) -> None:
        self._directory = TemporaryDirectory(prefix="sp-world-", ignore_cleanup_errors=True)
        context = get_context("spawn")
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            seat = Seat(rank, self.world, self.threads_per_rank, Path(self._directory.name))
            process = context.Process(target=serve, args=(seat, theirs), name=f"rank {rank}", daemon=True)
            process.start()
            theirs.close()  # so that the end of the process ends the connection
            self._ranks.append(_Rank(seat, process, ours))
        try:
            self._gather(deadline)
        except RankFailedError as error:
            error.add_note("while the world started: is the script guarded by `if __name__ == '__main__'`?")
            raise

    def _gather(self, deadline: float) -> list[bytes]:
        """The value of every rank, unless one fails."""
        values: dict[int, bytes] = {}
        while pending := [rank for rank in self._ranks if rank.seat.rank not in values]:
            handles = [handle for rank in pending for handle in (rank.connection, rank.process.sentinel)]
            ready = wait(handles, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(_where_they_stand(pending, self.world))
            heard = [rank for rank in pending if rank.connection in ready or rank.process.sentinel in ready]
            replies = {rank.seat.rank: rank.reply() for rank in heard}
            if any(reply is None or reply.failure for reply in replies.values()):
                self._blame(pending, replies)
            values |= {rank: reply.value for rank, reply in replies.items() if reply}
        return [values[rank] for rank in range(self.world)]

    def _blame(self, pending: Sequence[_Rank], replies: dict[int, Reply | None]) -> NoReturn:
        """Raises for a rank that died, else for the one that raised first."""
        ended = wait([rank.process.sentinel for rank in self._ranks], _AFTERMATH_S)
        late = [rank for rank in pending if rank.seat.rank not in replies and rank.connection.poll()]
        replies = replies | {rank.seat.rank: rank.reply() for rank in late}
        hung_up = [rank for rank, reply in replies.items() if reply is None]
        if dead := [r for r in self._ranks if r.process.sentinel in ended or r.seat.rank in hung_up]:
            deaths = ", ".join(f"rank {rank.seat.rank} of {self.world} {rank.death()}" for rank in dead)
            raise RankFailedError(dead[0].seat.rank, deaths)
        failures = {rank: reply for rank, reply in replies.items() if reply and reply.failure}
        first = min(failures, key=lambda rank: failures[rank].failed_at)
        raise RankFailedError(first, f"rank {first} of {self.world} failed:\n{failures[first].failure}")

    def _end(self, patience_s: float) -> None:
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.connection.close()  # all hang up before the first is waited for
        for rank in ranks:
            rank.end(patience_s)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None


def _where_they_stand(ranks: Sequence[_Rank], world: int) -> str:
    for rank in ranks:
        if rank.seat.stack.exists() and rank.process.pid:  # which is the sign that it listens to the signal
            os.kill(rank.process.pid, signal.SIGUSR1)
    time.sleep(_AFTERMATH_S)
    stacks = "".join(f"rank {rank.seat.rank}: {rank.stack()}" for rank in ranks)
    return f"{len(ranks)} of {world} ranks have not ended in time\n{stacks}"
