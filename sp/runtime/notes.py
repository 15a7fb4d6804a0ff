"""Notes: what a rank that gives up leaves for the others, in the store where the ranks of the job have met.

A store may be gone with the rank that has held it, or lie behind a link that is cut: whatever is asked of it is asked
in a thread of its own, and waited for a moment only.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

ERROR, LOST = "error", "lost"  # kinds: it has failed by itself; it has lost another
_KEY, _PAUSE_S, _WRITE_S = "sp/gave-up/", 0.01, 1.0
_NO_MESSAGE = 2**31 - 1  # a tag
_LONGEST = 300


@dataclass(frozen=True)
class Note:
    """awaited: the ranks that it waited for.  group: in which one, and how many exchanges it had begun there.
    left: all groups that it was in.  In one that was made later, the note is an old one."""

    kind: str
    text: str
    awaited: tuple[int, ...]
    group: str
    exchanges: int
    left: tuple[str, ...]


@dataclass(frozen=True)
class Board:
    """Where one rank of a group writes and reads.  Ranks are those of the job; `ranks` has those of the group."""

    group: dist.ProcessGroup
    store: dist.Store
    rank: int
    ranks: tuple[int, ...]

    @property
    def exchanges(self) -> int:
        """How many the group has begun on this rank."""
        known: Any = self.group
        return known._get_sequence_number_for_group()

    @property
    def timeout_s(self) -> float:
        known: Any = self.group
        return known._get_backend(known._device_types[0]).options._timeout.total_seconds()

    @property
    def everybody(self) -> list[int]:
        """All other ranks of the job."""
        return [rank for rank in range(dist.get_world_size()) if rank != self.rank]

    def write(self, kind: str, text: str, awaited: Sequence[int] = ()) -> None:
        left = tuple(group.group_name for group in c10d._world.pg_map)
        group = self.group.group_name
        note = json.dumps(asdict(Note(kind, text[:_LONGEST], tuple(awaited), group, self.exchanges, left)))
        patiently(lambda: self.store.set(f"{_KEY}{self.rank}", note), _WRITE_S)

    def read(self, rank: int, group: str = "") -> Note | None:
        """What that rank has written so far to those that wait for it in `group`; "" is the board's own.

        Call it inside `patiently`."""
        key = f"{_KEY}{rank}"
        if not self.store.check([key]):
            return None
        words: dict[str, Any] = json.loads(self.store.get(key))
        words["awaited"], words["left"] = tuple(words["awaited"]), tuple(words["left"])
        note = Note(**words)
        return note if (group or self.group.group_name) in note.left else None

    def clear(self) -> None:
        """Every rank of the group calls it, and has read all: the last one wipes off what is written."""
        if self.store.add(f"{_KEY}read", 1) == len(self.ranks):
            for key in ("read", *self.ranks):
                self.store.delete_key(f"{_KEY}{key}")


def board_of(group: dist.ProcessGroup | None) -> Board | None:
    """None in a world of one, and for a group that torch.distributed does not know: a world of threads."""
    if group is None or group not in c10d._world.pg_map:
        return None
    return Board(group, c10d._get_default_store(), dist.get_rank(), tuple(dist.get_process_group_ranks(group)))


def leave_all_groups() -> None:
    """Closes the connections of every gloo group of this process: whoever waits for this rank waits no longer."""
    close_connections(*c10d._world.pg_map)


def close_connections(*groups: dist.ProcessGroup) -> None:
    """Closes every connection of gloo groups: whoever waits on one, on either side, gets a RuntimeError at once.

    `abort()` and `shutdown()` of a gloo group do nothing, and it is not deleted while anyone refers to it. But a
    receive that times out closes all connections of its group; one from a peer that is gone already fails at once, and
    closes none: so each peer is tried. Groups without gloo are left alone."""
    for group in filter(_is_gloo, groups):
        for peer in range(group.size()):
            if peer != group.rank():
                with contextlib.suppress(RuntimeError):  # that it timed out, or that it was closed already
                    group.recv([torch.empty(1)], peer, _NO_MESSAGE).wait(timedelta(milliseconds=1))


def _is_gloo(group: Any) -> bool:
    cpu = torch.device("cpu")
    return cpu in group._device_types and group._get_backend(cpu).name() == "gloo"


def patiently(work: Callable[[], object], patience_s: float) -> None:
    """Does it, or leaves it behind where it takes longer; a store that is gone has nothing to say."""

    def quietly() -> None:
        with contextlib.suppress(RuntimeError):
            work()

    thread = threading.Thread(target=quietly, name="sp notes", daemon=True)
    thread.start()
    thread.join(patience_s)


def until(done: Callable[[], bool], patience_s: float) -> None:
    """Asks again and again, until it is or patience ends."""
    end = time.monotonic() + patience_s

    def ask() -> None:
        while not done() and time.monotonic() < end:
            time.sleep(_PAUSE_S)

    patiently(ask, patience_s)
