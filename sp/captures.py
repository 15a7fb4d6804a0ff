"""What is said of captures: each in the log, and a warning of those that come again and again."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

from sp.executable import Executable
from sp.granted import difference
from sp.runtime.tally import tallies_of

MANY = 8

_LOG = logging.getLogger(__name__)


def note_capture(executables: Sequence[Executable], model: str, seconds: float, group: str) -> None:
    """The latest has been built in so many seconds.  group: the name of the world that the model runs in."""
    *others, latest = executables
    for tally in tallies_of(group):
        tally.captures, tally.capture_s = tally.captures + 1, tally.capture_s + seconds
        tally.recaptures += any(known.shared == latest.shared for known in others)
    name, lengths = latest.program.strategy.name, ", ".join(f"{length:,}" for length in latest.lengths)
    _LOG.info("capture %d of %s: %s, %s tokens, %.1f s", len(executables), model, name, lengths, seconds)
    warn_of_many(executables)


def note_call(executable: Executable, group: str) -> None:
    """It is about to run, for the first time or again."""
    for tally in tallies_of(group):
        tally.calls, tally.reused = tally.calls + 1, tally.reused + (executable.calls > 0)


def warn_of_many(executables: Sequence[Executable]) -> None:
    """Once, when the latest is the eighth for calls of one form: each takes seconds, and memory."""
    *others, latest = executables
    alike = [known for known in others if known.shared == latest.shared and known.state != latest.state]
    if len(alike) == MANY - 1:
        warnings.warn(
            f"{MANY} captures of one model for calls of one form; the latest, since it has changed in "
            f"{difference(alike[-1].state, latest.state)!r}. A graph holds the plain values that modules hold: pass "
            "what changes at every call as an argument, as a tensor",
            stacklevel=2,
        )
