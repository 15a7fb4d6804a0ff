"""Blame: which rank is lost, where all that a rank knows is whom it has waited for.

rank 0 waited for 2, rank 2 waited for 1, and rank 1 says nothing: it is rank 1
rank 0 waited for 2, rank 2 waited for 1, and rank 1 says "IndexError: …": it is rank 1, and that is why
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sp.errors import RankLostError
from sp.runtime.notes import ERROR, LOST, Board, Note, board_of, leave_all_groups, until
from sp.runtime.world import World

_LATE = ("Timed out", "timed out")  # how gloo says it
_MOMENT_S = 1.0  # from the first rank that loses another to the last
_ONLY_SLOW = "if it was only slow, init_process_group(timeout=…); if not, "


@dataclass
class Blame:
    """From the ranks that this one waited for, to those that they waited for, and so on: who has failed by itself, and
    who is silent."""

    board: Board
    awaited: tuple[int, ...]
    notes: dict[int, Note] = field(default_factory=dict[int, Note])
    failed: list[int] = field(default_factory=list[int])
    silent: list[int] = field(default_factory=list[int])
    on_me: bool = False

    @property
    def said(self) -> str:
        return "".join(f"\n  rank {rank}: {note.text}" for rank, note in sorted(self.notes.items()))

    def look(self) -> bool:
        """Whether there is nothing left to wait for."""
        self.failed, self.silent, seen = [], [], set[int]()
        ahead = [(rank, self.board.group.group_name) for rank in self.awaited]
        while ahead:
            rank, group = ahead.pop(0)
            if rank in seen:
                continue
            seen.add(rank)
            note = None if rank == self.board.rank else self.notes.get(rank) or self.board.read(rank, group)
            if note is not None:
                self.notes[rank] = note
                ahead += [(each, note.group) for each in note.awaited]
            if rank != self.board.rank and (note is None or note.kind == ERROR):
                (self.silent if note is None else self.failed).append(rank)
        self.on_me = self.board.rank in seen
        return bool(self.failed) or not self.silent


def lost(world: World, what: str, error: BaseException, waited_s: float, awaited: Sequence[int]) -> RankLostError:
    """Tells the others, ends their wait for this rank, hears what they say, and says who is to blame.

    awaited: ranks of the job."""
    board, late = board_of(world.group), any(sign in str(error) for sign in _LATE)
    me = world.rank if board is None else board.rank
    waited = f"waited {waited_s:.1f} s for {_named(awaited)} in: {what}"
    blame = None if board is None else _told(board, waited, awaited)
    named, verdict = list(awaited), "is late or lost" if late else "is lost"
    if blame is not None:
        named = blame.failed or blame.silent or named
        if blame.on_me and not blame.silent and not late:
            verdict = f"gave up on this rank, {me}"
        if blame.failed:
            verdict = "failed"
    slow = _ONLY_SLOW if late and verdict != "failed" else ""
    return RankLostError(
        f"{_named(named)} {verdict}\n  this rank, {me}: {waited}{_number(board)}; backend: {first_line(error)}"
        f"{'' if blame is None else blame.said}",
        needed=_needed(world, board),
        remedy=f"{slow}read the log of {_named(named)} first; restart all ranks from the last checkpoint, as"
        " torchrun --max-restarts does",
        ranks=named,
    )


def _told(board: Board, waited: str, awaited: Sequence[int]) -> Blame:
    """This rank's note is written before its connections are closed: who wakes up by that finds it."""
    board.write(LOST, waited, awaited)
    leave_all_groups()
    blame = Blame(board, tuple(awaited))
    until(blame.look, _MOMENT_S)
    return blame


def _named(ranks: Sequence[int]) -> str:
    if not ranks:
        return "another rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"one of the ranks {', '.join(map(str, ranks))}"


def _number(board: Board | None) -> str:
    return "" if board is None else f", exchange {board.exchanges} of its group"


def _needed(world: World, board: Board | None) -> str:
    if board is None:
        return f"{world.size} ranks alive, none later than the timeout of their group"
    return f"the ranks {', '.join(map(str, board.ranks))} alive, none later than {board.timeout_s:g} s, their timeout"


def first_line(error: BaseException) -> str:
    """Without where in the backend, and without its advice."""
    return str(error).partition("\n")[0].rpartition("] ")[2].partition(". ")[0][:200]
