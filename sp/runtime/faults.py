"""Faults: an exchange that fails becomes an error that names the rank, the exchange and the step, on every rank.

    rank 0                          rank 1          rank 2
    waits for rank 2                is killed       waits for rank 1: the connection is closed
                                                    notes "I waited for rank 1", closes its own connections
    the connection is closed                        …
    notes "I waited for rank 2"                     …
    rank 2 has given up, 1 is silent                rank 1 is silent

Backends know less than that: gloo says which address has closed a connection, or nothing.  So a rank that fails leaves
a note for the others (`sp.runtime.notes`), then closes its connections, which ends the wait of those that wait for it.
Who has left no note a moment later is the one to look at.

None of it runs before something fails.  Groups of other backends than gloo are not closed: NCCL has a watchdog of its
own.  Nor are worlds of threads, which whoever has started them ends.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType

import torch.distributed as dist

from sp.errors import RankLostError
from sp.runtime.blame import first_line, lost
from sp.runtime.notes import ERROR, Note, board_of, leave_all_groups, until
from sp.runtime.world import World

# How gloo words what is no fault of the call.
_SIGNS = ("gloo/transport", "pair closure", "Timed out", "Connection closed", "Connection reset", "Broken pipe")
_ALIKE_S = 2.0  # from the first to the last of ranks that all fail by themselves, as where none can compile the model


class Watch:
    """Around the start of an exchange, and around the wait for it: what the backend raises there becomes a
    RankLostError.  what: the exchange, with `values` in its places.  source: the rank of `world` that sends, if one."""

    __slots__ = ("_begin", "_source", "_values", "_what", "_world")

    def __init__(self, world: World, what: str, *values: object, source: int | None = None) -> None:
        self._world, self._what, self._values, self._source, self._begin = world, what, values, source, 0.0

    def __enter__(self) -> None:
        self._begin = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is not None and is_a_fault(error):
            what, waited_s = self._what.format(*self._values), time.monotonic() - self._begin
            raise lost(self._world, what, error, waited_s, self._awaited()) from error

    def _awaited(self) -> list[int]:
        """By the names that the job has for them."""
        world = self._world
        known = world.ranks if board_of(world.group) else range(world.size)
        here = range(world.size) if self._source is None else [self._source]
        return [known[rank] for rank in here if rank != world.rank]


def is_a_fault(error: BaseException) -> bool:
    """Whether a backend's connections have failed, and not the call of it."""
    worded = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
    return worded or isinstance(error, (dist.DistBackendError, dist.DistNetworkError))


class Inside:
    """Around exchanges: a rank that is lost there was lost during `what`, with `values` in its places."""

    __slots__ = ("_values", "_what")

    def __init__(self, what: str, *values: object) -> None:
        self._what, self._values = what, values

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if isinstance(error, RankLostError):
            raise error.during(self._what.format(*self._values)) from error.__cause__


@contextmanager
def failing_together(world: World, during: str) -> Generator[None]:
    """Whatever is raised inside ends the wait of the other ranks of `world`, and tells them why.

    Where all of them fail at the same exchange, as when none can compile the model, the groups stay as they are."""
    begin = time.monotonic()
    try:
        yield
    except GeneratorExit:  # who has it around a `yield` is left, and has not failed
        raise
    except RankLostError as error:
        raise error.during(during) from error.__cause__
    except BaseException as error:  # also a keyboard's, and those of torch.distributed.checkpoint
        if is_a_fault(error):  # of an exchange that torch makes, as FSDP does: with whom, it does not say
            board = board_of(world.group)
            others = [] if board is None else board.everybody
            lost_one = lost(world, "an exchange of torch", error, time.monotonic() - begin, others)
            raise lost_one.during(during) from error
        _give_up(world, f"{type(error).__name__}: {first_line(error)}".removesuffix(": "))
        raise


def _give_up(world: World, why: str) -> None:
    """Tells the others, and ends their wait for this rank unless all of them fail alike."""
    board = board_of(world.group)
    if board is None:
        return
    board.write(ERROR, why)
    mine, others, notes = board.exchanges, [rank for rank in board.ranks if rank != board.rank], dict[int, Note]()

    def differs() -> bool:
        return any((note.kind, note.exchanges) != (ERROR, mine) for note in notes.values())

    def look() -> bool:
        notes.update({rank: note for rank in others if (note := board.read(rank))})
        return differs() or len(notes) == len(others)

    until(look, min(_ALIKE_S, board.timeout_s / 2))
    if len(notes) < len(others) or differs():
        leave_all_groups()
    else:
        board.clear()
