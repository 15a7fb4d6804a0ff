"""Shares of the heads: what each rank computes where heads are dealt instead of tokens.  No torch here.

6 query heads, 2 key/value heads, 4 ranks
query heads        0 · 1 2 · 3 · 4 5
key/value heads    0 · 0   · 1 · 1        each rank gets those that its query heads need
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class HeadShare:
    """The heads of one rank.  heads: its query heads.  groups: the key/value heads that these need.

    picks: for each of its query heads, the place of its key/value head in `groups`."""

    heads: range
    groups: range
    picks: tuple[int, ...]

    @property
    def grouped(self) -> bool:
        """Whether each of its key/value heads serves as many of its query heads, as kernels want it."""
        return len({self.picks.count(place) for place in set(self.picks)}) <= 1


@lru_cache(maxsize=1024)
def share_heads(heads: int, groups: int, world: int) -> tuple[HeadShare, ...]:
    """The share of each rank, evenly up to one query head; a rank may get none.  `groups` divides `heads`."""
    each = heads // groups
    shares: list[HeadShare] = []
    for rank in range(world):
        mine = range(rank * heads // world, (rank + 1) * heads // world)
        first = mine.start // each
        needed = range(first, (mine.stop - 1) // each + 1 if mine else first)
        shares.append(HeadShare(mine, needed, tuple(head // each - first for head in mine)))
    return tuple(shares)
