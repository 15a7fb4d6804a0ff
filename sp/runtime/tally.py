"""Tallies: what one rank sends, receives and waits for while somebody counts, and what it captures.

    opened = open_tally(names, waits=False)       names of this rank's groups
    …  comm: tallies = note_message(world, EXCHANGE, sent, received); with waiting(tallies): work.wait()
    close_tally(opened)

Where nobody counts, a message costs the look at an empty dict.  Tallies are found by the group's name, which is a
rank's own even where ranks are threads: autograd's threads, where backward talks, inherit nothing from the one that
counts, and ops know no more of their caller than that name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from torch import Tensor

from sp.runtime.world import World

EXCHANGE, GATHER, ALL_TO_ALL, SUM = KINDS = ("exchange", "all-gather", "all-to-all", "sum")

_NOTHING = nullcontext()
_LOCK = threading.Lock()
_OPEN: dict[str, tuple[Tally, ...]] = {}  # by name of group; empty where nobody counts


@dataclass
class Traffic:
    """Messages of one kind: how many, and the bytes that left this rank and came to it."""

    messages: int = 0
    sent: int = 0
    received: int = 0


@dataclass
class Tally:
    """names: of the groups that it counts for.  waits: whether waiting is timed.  sums: where sums under way lie."""

    names: tuple[str, ...]
    waits: bool
    traffic: dict[str, Traffic] = field(default_factory=lambda: {kind: Traffic() for kind in KINDS})
    waited_s: float = 0.0
    calls: int = 0
    reused: int = 0
    captures: int = 0
    recaptures: int = 0
    capture_s: float = 0.0
    sums: set[int] = field(default_factory=set[int])


def open_tally(names: Sequence[str], waits: bool) -> Tally:
    """Count for these groups from now on, beside others that do."""
    tally = Tally(tuple(dict.fromkeys(names)), waits)
    with _LOCK:
        for name in tally.names:
            _OPEN[name] = (*_OPEN.get(name, ()), tally)
    return tally


def close_tally(tally: Tally) -> None:
    with _LOCK:
        for name in tally.names:
            others = tuple(each for each in _OPEN.pop(name) if each is not tally)
            if others:
                _OPEN[name] = others


def tallies_of(group_name: str) -> tuple[Tally, ...]:
    """Who counts for the group of that name; "" is a world of one."""
    return _OPEN.get(group_name, ()) if _OPEN else ()


def note_message(world: World, kind: str, sent: int, received: int) -> tuple[Tally, ...]:
    """This rank posts a message: bytes that leave it and that come to it.  Returned is who times the wait for it."""
    if not _OPEN or world.group is None or not (sent or received):
        return ()
    found = tallies_of(world.group.group_name)
    for tally in found:
        traffic = tally.traffic[kind]
        traffic.messages, traffic.sent, traffic.received = (
            traffic.messages + 1,
            traffic.sent + sent,
            traffic.received + received,
        )
    return tuple(tally for tally in found if tally.waits)


def note_sum(world: World, x: Tensor, posted: bool = False) -> tuple[Tally, ...]:
    """A sum of every rank's `x`: the bytes of a ring of reductions, whatever the backend does.

    posted: it is waited for elsewhere, where nothing is known but the tensor (`timers_of_sum`)."""
    around = 2 * x.nbytes * (world.size - 1) // world.size
    timers = note_message(world, SUM, around, around)
    for tally in timers if posted else ():
        tally.sums.add(x.untyped_storage().data_ptr())
    return timers


def timers_of_sum(x: Tensor) -> tuple[Tally, ...]:
    """Who times the wait for a sum that was posted into the memory of `x`."""
    if not _OPEN:
        return ()
    place = x.untyped_storage().data_ptr()
    found = {id(tally): tally for tallies in list(_OPEN.values()) for tally in tallies if place in tally.sums}
    for tally in found.values():
        tally.sums.discard(place)
    return tuple(found.values())


def waiting(tallies: Sequence[Tally]) -> AbstractContextManager[None]:
    """The time inside is this rank's waiting."""
    return _timed(tallies) if tallies else _NOTHING


@contextmanager
def _timed(tallies: Sequence[Tally]) -> Generator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        for tally in tallies:
            tally.waited_s += time.perf_counter() - start
