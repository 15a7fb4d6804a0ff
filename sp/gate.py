"""Gate: a parallelized model is called in the process that made it, and by one thread at a time.

Its ranks talk in the order of their calls.  Two threads of one rank would mix what belongs to two calls, and a forked
process would write into the connections of its parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from sp.errors import SpError
from sp.runtime.world import World


class Gate:
    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()

    @contextmanager
    def entered(self, world: World) -> Generator[SpError | None]:
        """Inside, no other thread is.  Yields what this call has to tell the other ranks in place of a call, where it
        came while another thread was inside: each call is one of each rank, so that none is left out.

        SpError in a forked process, at once."""
        if world.group is not None and os.getpid() != self._process:
            raise SpError(
                "a parallelized model is called in a forked process",
                needed="the process that holds its connections to the other ranks",
                remedy="call it there; in a new process, join a process group and parallelize the model again",
            )
        alone = self._lock.acquire(blocking=False)
        if not alone:
            self._lock.acquire()
        try:
            yield None if alone or world.group is None else _two_at_once()
        finally:
            self._lock.release()


def _two_at_once() -> SpError:
    return SpError(
        "two threads call one parallelized model at the same time",
        needed="the same order of calls on all ranks, which threads do not keep",
        remedy="call it from one thread, or have a lock around forward and backward",
    )
