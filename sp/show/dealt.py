"""One attention dealt to ranks: who holds how much, and how much is where after so many hops.

Sums over the hops of a ring are differences of two sums of the beginning, so that a rank costs the same in every world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from sp.heads import HeadShare, share_heads
from sp.layout import find_layout
from sp.plan import count_steps, make_plan
from sp.program import AttentionSite
from sp.traffic import Widths


class Circle:
    """How many tokens each rank of a ring holds."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self.most = max(lengths)
        self._sums = [0, *accumulate((*lengths, *lengths))]

    def of(self, rank: int) -> int:
        return self.lengths[rank]

    def stretch(self, first: int, count: int) -> int:
        """The tokens of `count` ranks, at most all: `first` and those behind it."""
        begin = first % len(self.lengths)
        return self._sums[begin + count] - self._sums[begin]

    def back_from(self, last: int, count: int) -> int:
        """The tokens of `count` ranks: `last` and those before it."""
        return self.stretch(last - count + 1, count)


@dataclass(frozen=True)
class Dealt:
    """inner: of a mesh of two axes, how many ranks the inner one has."""

    site: AttentionSite
    layout: str
    length: int
    keys: int
    world: int
    inner: int | None = None

    @cached_property
    def steps(self) -> int:
        """Until no rank has work left; the same for all ranks."""
        if self.site.transport == "merge":
            return 1
        return count_steps(make_plan(self.layout, self.site.mask, self.length, self.world, 0, self.keys, self.inner))

    @cached_property
    def widths(self) -> Widths:
        site = self.site
        return Widths(site.heads, site.kv_heads, site.head_width, site.value_width, site.item_bytes)

    @cached_property
    def queries(self) -> Circle:
        return Circle(self._lengths(self.length))

    @cached_property
    def held(self) -> Circle:
        """Of keys."""
        return Circle(self._lengths(self.keys))

    def _lengths(self, total: int) -> list[int]:
        return [find_layout(self.layout).local_length(total, rank, self.world) for rank in range(self.world)]

    def area(self, rank: int) -> int:
        """Visible pairs of all heads that a rank computes.  Where heads are dealt, those of its heads that the ranks
        have with whom it deals."""
        site = self.site
        if site.transport == "merge":
            return self.length * self.held.of(rank) * site.heads
        if site.transport == "alltoall":
            return self.between._pairs(rank // self.joined) * len(self.share(rank).heads)
        return self._pairs(rank) * site.heads

    def _pairs(self, rank: int) -> int:
        runs = find_layout(self.layout).runs(self.length, rank, self.world)
        return sum(self.site.mask.pairs(run, self.keys) for run in runs)

    # Two rings, one in another.

    @property
    def neighbours(self) -> int:
        return self.inner or self.world

    @cached_property
    def rings(self) -> list[Circle]:
        """The keys of each inner ring."""
        size, lengths = self.neighbours, self.held.lengths
        return [Circle(lengths[begin : begin + size]) for begin in range(0, self.world, size)]

    @cached_property
    def alike(self) -> list[Circle]:
        """The keys of the ranks that have the same place in their inner rings."""
        return [Circle(self.held.lengths[place :: self.neighbours]) for place in range(self.neighbours)]

    # Heads for tokens.

    @cached_property
    def joined(self) -> int:
        """How many ranks deal their heads among each other."""
        return find_layout(self.layout).nesting(self.world)[1]

    @cached_property
    def _shares(self) -> tuple[HeadShare, ...]:
        return share_heads(self.site.heads, self.site.kv_heads, self.joined)

    @cached_property
    def copies(self) -> int:
        """How many heads of keys all of them need together."""
        return sum(len(share.groups) for share in self._shares)

    def share(self, rank: int) -> HeadShare:
        return self._shares[rank % self.joined]

    @cached_property
    def between(self) -> Dealt:
        """What such groups deal among each other: each is one rank of it, holding what its ranks have together."""
        layout = find_layout(self.layout).nesting(self.world)[0].name
        ring = replace(self.site, transport="ring")
        return Dealt(ring, layout, self.length, self.keys, self.world // self.joined)

    def ring_of(self, heads: int, groups: int) -> Dealt:
        """The same with so many heads; a few kinds of ranks differ in that."""
        known = self._rings_of
        if (heads, groups) not in known:
            site = replace(self.between.site, heads=heads, kv_heads=groups)
            known[heads, groups] = replace(self.between, site=site)
        return known[heads, groups]

    @cached_property
    def _rings_of(self) -> dict[tuple[int, int], Dealt]:
        return {}
