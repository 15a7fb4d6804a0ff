"""`count`: what one rank has sent, received and waited for in some calls, and what it has captured.

with sp.count(pmodel, waits=True) as meter:
    pmodel(ids, labels=ids).loss.backward()
print(meter.counts)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sp.mesh import Mesh, bind_mesh
from sp.module import ParallelModule
from sp.runtime.tally import Tally, close_tally, open_tally
from sp.runtime.world import find_world
from sp.show.words import table


@dataclass(frozen=True)
class Messages:
    """Of one kind ("exchange": a hop of a ring, "all-gather", "all-to-all", "sum"): how many this rank has posted, and
    the bytes that have left it for other ranks and come from them.

        >>> with sp.count(pmodel) as meter:
        ...     loss = pmodel(ids, labels=ids).loss
        >>> meter.counts.kinds[0]  # a world of one has nobody to talk to
        Messages(kind='exchange', messages=0, sent=0, received=0)
    """

    kind: str
    messages: int
    sent: int
    received: int


@dataclass(frozen=True)
class Counts:
    """What one rank has done since counting began.

        >>> def step(group):
        ...     norm = sp.parallelize(nn.LayerNorm(4), mesh=group, compile=False)
        ...     with sp.count(norm) as meter:
        ...         norm(torch.ones(1, 8, 4))
        ...     return meter.counts
        >>> counts, other = sp.testing.run_ranks(2, step)
        >>> counts.messages, counts.sent, counts.received  # three statements of 2,048 bytes, and 4 tokens of the output
        (4, 6208, 6208)
        >>> counts.as_dict()["captures"]
        1

    calls: of parallelized models.  reused: those whose graph had run before.  captures: graphs that were made, in
    capture_s seconds.  recaptures: those of them for calls that had been captured, of a model that has changed since.
    waited_s: seconds in which this rank stood still for others; None where that was not asked for.

    Bytes are those of the tensors that travel.  A sum counts as a ring of reductions would send it, 2 (n - 1) / n of
    its size, whatever the backend does.  What others send, such as FSDP, is not in it."""

    calls: int
    reused: int
    captures: int
    recaptures: int
    capture_s: float
    waited_s: float | None
    kinds: tuple[Messages, ...]

    @property
    def sent(self) -> int:
        """Bytes that have left this rank."""
        return sum(each.sent for each in self.kinds)

    @property
    def received(self) -> int:
        """Bytes that have come to this rank."""
        return sum(each.received for each in self.kinds)

    @property
    def messages(self) -> int:
        """How often this rank has posted something."""
        return sum(each.messages for each in self.kinds)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for json."""
        return {**asdict(self), "sent": self.sent, "received": self.received, "messages": self.messages}

    def __str__(self) -> str:
        facts = [
            ("calls", f"{self.calls:,}, {self.reused:,} of them by a graph that had run before"),
            ("captures", f"{self.captures:,} in {self.capture_s:.1f} s, {self.recaptures:,} of them again"),
            ("waited", "not timed: sp.count(…, waits=True)" if self.waited_s is None else f"{self.waited_s:.3f} s"),
        ]
        used = [each for each in self.kinds if each.messages]
        total = Messages("all", self.messages, self.sent, self.received)
        rows = [(each.kind, *(f"{n:,}" for n in (each.messages, each.sent, each.received))) for each in (*used, total)]
        headers = ("what travels", "messages", "bytes sent", "bytes received")
        return f"{table(facts)}\n\n{table(rows, headers, right=(1, 2, 3))}"


@dataclass(frozen=True)
class Meter:
    """Counts while the block of `sp.count` lasts.

    >>> with sp.count(pmodel) as meter:
    ...     loss = pmodel(ids, labels=ids).loss
    ...     print(meter.counts.calls)
    1
    """

    tally: Tally

    @property
    def counts(self) -> Counts:
        """Up to now; after the block, all of it."""
        tally = self.tally
        kinds = tuple(Messages(kind, each.messages, each.sent, each.received) for kind, each in tally.traffic.items())
        return Counts(
            tally.calls,
            tally.reused,
            tally.captures,
            tally.recaptures,
            tally.capture_s,
            tally.waited_s if tally.waits else None,
            kinds,
        )


@contextmanager
def count(mesh: Mesh | ParallelModule, *, waits: bool = False) -> Generator[Meter]:
    """Count what this rank does inside, over one mesh: bytes and messages of forward and backward, calls, captures.

        >>> with sp.count(pmodel) as meter:
        ...     pmodel(ids, labels=ids).loss.backward()
        >>> print(meter.counts)
        calls     1, … of them by a graph that had run before
        captures  … in … s, 0 of them again
        waited    not timed: sp.count(…, waits=True)
        ...

    mesh: the parallelized model, or what `sp.parallelize` took; all models over these ranks are counted together.
    waits: time the waits, too.  On CUDA a wait for NCCL blocks no thread: see `sp.trace` there.

    Each rank counts for itself, blocks may lie in each other, and nothing is exchanged for it."""
    name = mesh.options.group if isinstance(mesh, ParallelModule) else bind_mesh(None, mesh)[1]
    world = find_world(name)
    groups = [each.group.group_name for each in (world, *world.axes) if each.group is not None]
    tally = open_tally([name, *groups], waits)
    try:
        yield Meter(tally)
    finally:
        close_tally(tally)
