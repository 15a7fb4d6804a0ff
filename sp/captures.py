"""What is said of captures: each in the log, and a warning of those that come again and again."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

from sp.executable import Executable
from sp.granted import difference

MANY = 8

_LOG = logging.getLogger(__name__)


def note_capture(executables: Sequence[Executable], model: str, seconds: float) -> None:
    """The latest has been built in so many seconds."""
    latest = executables[-1]
    name, lengths = latest.program.strategy.name, ", ".join(f"{length:,}" for length in latest.lengths)
    _LOG.info("capture %d of %s: %s, %s tokens, %.1f s", len(executables), model, name, lengths, seconds)
    warn_of_many(executables)


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
