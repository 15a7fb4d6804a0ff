"""Captures that come again and again, because something changes at every call that need not."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from sp.executable import Executable
from sp.granted import difference

MANY = 8


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
