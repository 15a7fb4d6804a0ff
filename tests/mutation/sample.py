"""Which mutants are tried: a sample, numbered by their lines, and a range of it."""

import random
from collections.abc import Collection, Sequence

from tests.mutation.mutants import Mutant


def draw(mutants: Sequence[Mutant], count: int, seed: int, lines: Collection[int] | None = None) -> dict[int, Mutant]:
    """At most `count` of them, of some lines alone if any are given; numbered from 1 in the order of their lines."""
    open_to = [mutant for mutant in mutants if not lines or mutant.line in lines]
    drawn = random.Random(seed).sample(open_to, min(count, len(open_to)))
    return dict(enumerate(sorted(drawn, key=lambda mutant: mutant.line), start=1))


def chosen(drawn: dict[int, Mutant], first: int, last: int) -> dict[int, Mutant]:
    """Those with the numbers from `first` to `last`, both included."""
    return {number: mutant for number, mutant in drawn.items() if first <= number <= last}
