"""Which captures a model keeps: at most so many, those that ran last.

    kept    A ran at call 7, B at call 9, C at call 4; now D is captured      →      A, B, D

A rank that lacks a capture says so to the others before it runs, see `ParallelModule`; so all must drop the same.
They do: dropped are captures that all have agreed on, by the order of calls, which is the same everywhere.  What was
captured and never agreed on is dropped by itself: to capture it again, or not to have it, is all the same to others.
"""

from __future__ import annotations

import warnings

from sp.executable import Executable

KEPT = 32


def take(executables: list[Executable], one: Executable, keep: int = KEPT) -> Executable:
    """`one`, which all ranks have agreed on, for a call: the captures that it leaves no room for are dropped."""
    one.used = 1 + max(each.used for each in executables)
    agreed = sorted((each for each in executables if each.agreed), key=lambda each: each.used)
    waiting = [each for each in executables if not each.agreed]
    for each in (*agreed[:-keep], *waiting[:-keep]):
        _drop(executables, each)
    if agreed[:-keep]:
        warnings.warn(
            f"a model keeps {keep} captures, and has dropped the one that was not called for longest: where it is"
            " called in more ways than that by turns, each turn captures it anew",
            stacklevel=2,
        )
    return one


def _drop(executables: list[Executable], one: Executable) -> None:
    """What the strategy was chosen by is told by the first of them."""
    place = next(place for place, each in enumerate(executables) if each is one)
    del executables[place]
    if not place:
        executables[0].estimates = executables[0].estimates or one.estimates
