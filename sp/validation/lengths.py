"""Lengths: how long the sequences of a trial are."""

from __future__ import annotations

from collections.abc import Sequence

from sp.errors import InputError
from sp.program import Sequence as SequenceSize
from sp.request import Lengths


def trial_lengths(sequences: Sequence[SequenceSize], world: int, wanted: Sequence[int] | None) -> tuple[Lengths, ...]:
    """For each trial, the lengths of all sequences: as asked for of the first one, and others for the others."""
    first = _lengths_of(sequences[0], world, wanted)
    others = [_lengths_of(sequence, world, None) for sequence in sequences[1:]]
    return tuple(
        (length, *(other[(number + place + 1) % len(other)] for place, other in enumerate(others)))
        for number, length in enumerate(first)
    )


def _lengths_of(sequence: SequenceSize, world: int, wanted: Sequence[int] | None) -> tuple[int, ...]:
    """Those asked for, or the next multiple of the world with two tokens a rank, and one that is no multiple."""
    least, most = max(sequence.shortest, world), sequence.longest
    if wanted is None:
        even = -(-max(least, 2 * world, 8) // world) * world
        tried = [even, even + max(world - 1, 1)]
        if most is not None and tried[-1] > most:
            tried = [size for size in (most - 1, most) if size >= least]
    else:
        tried = list(wanted)
    wrong = [size for size in tried if not least <= size <= (most or size)]
    if wrong or not tried:
        raise InputError(
            f"lengths {wrong or tried} cannot be tried on {world} ranks",
            needed=f"lengths from {least} to {most or '∞'}, for which this capture holds",
        )
    return tuple(tried)
