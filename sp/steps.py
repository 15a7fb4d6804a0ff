"""Steps: what one rank computes while whose keys and values are with it.  Integers only, no torch.

A rank of 4,096 has as many steps, but of a few kinds, whatever the length: they are worked out when they are first
looked at, and kept as the number of its kind for each step, which is kilobytes.

    zigzag  causal  world=4096  rank 1000     own causal | from 1000 earlier ranks full k[:half] | then full q[half:]
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import overload

from sp.cover import cover, meets
from sp.layout import Layout, Run, find_layout
from sp.mask import Band
from sp.tile import Tile, halves

Runs = tuple[Run, ...]


@dataclass(frozen=True)
class Step:
    """The tiles against the keys and values that come from rank `source`."""

    source: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Steps(Sequence[Step]):
    """All steps of `rank`, in the order in which a ring brings the keys.  See `Plan` for the fields."""

    layout: Layout
    mask: Band
    length: int
    keys: int
    world: int
    rank: int
    inner: int | None = None

    def __len__(self) -> int:
        return self.world

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, index: int | slice) -> Step | tuple[Step, ...]:
        hops = range(self.world)[index]
        return self._step(hops) if isinstance(hops, int) else tuple(map(self._step, hops))

    def __iter__(self) -> Iterator[Step]:
        return map(self._step, range(self.world))

    def _step(self, hop: int) -> Step:
        kinds, numbers = self._kinds
        return Step(source_of(self.rank, hop, self.world, self.inner), kinds[numbers[hop]])

    @cached_property
    def _kinds(self) -> tuple[tuple[tuple[Tile, ...], ...], array[int]]:
        """All different tiles of a step, and which of them each step has."""
        kinds, numbers = dict[tuple[Tile, ...], int](), array("I")
        for hop in range(self.world):
            source = source_of(self.rank, hop, self.world, self.inner)
            tiles = make_step(self.layout, self.mask, self.length, self.keys, self.world, self.rank, source).tiles
            numbers.append(kinds.setdefault(tiles, len(kinds)))
        return tuple(kinds), numbers


def make_step(rule: Layout, mask: Band, length: int, keys: int, world: int, rank: int, source: int) -> Step:
    """One step of the plan of `rank`: its queries against the keys of `source`."""
    return Step(source, cover(rule.runs(length, rank, world), rule.runs(keys, source, world), mask))


def source_of(rank: int, hop: int, world: int, inner: int | None) -> int:
    """Whose keys are with `rank` after so many hops.

    In a ring of rings blocks go round among `inner` neighbours, and then one such ring on."""
    size = inner or world
    (ring, place), (turn, step) = divmod(rank, size), divmod(hop, size)
    return (ring - turn) % (world // size) * size + (place - step) % size


@lru_cache(maxsize=4096)
def count_hops(layout: str, mask: Band, length: int, keys: int, world: int, inner: int | None) -> int:
    """After how many steps no rank has work left."""
    rule = find_layout(layout)
    queries, held = ([rule.runs(total, rank, world) for rank in range(world)] for total in (length, keys))
    strides = {run.stride for runs in (*queries, *held) for run in runs}
    if inner is None and strides == {1}:
        return 1 + _farthest(queries, held, mask)
    for hop in reversed(range(world)):
        if strides == {world} and not _may_meet(hop, mask, world, inner):
            continue
        # From the last rank on: under a causal mask it sees the most, and answers at once.
        sources = ((rank, source_of(rank, hop, world, inner)) for rank in reversed(range(world)))
        if any(meets(queries[rank], held[source], mask) for rank, source in sources):
            return hop + 1
    return 1


def _may_meet(hop: int, mask: Band, world: int, inner: int | None) -> bool:
    """Whether a window reaches any of the positions that a rank meets in a hop, where positions go round the ranks:
    their distance is that of the ranks, and whole worlds."""
    if mask.left is None or mask.right is None:
        return True
    width, wrapped = mask.left + mask.right, inner if inner and hop % inner else 0
    return any((away + mask.right) % world <= width for away in {hop, hop - wrapped})


def _farthest(queries: Sequence[Runs], held: Sequence[Runs], mask: Band) -> int:
    """The last hop in which any rank sees a key, where all hold stretches of positions."""
    world, farthest = len(held), 0
    for hop in _seen(queries, held, mask):
        farthest = max(farthest, hop)
        if farthest == world - 1:
            break
    return farthest


def _seen(queries: Sequence[Runs], held: Sequence[Runs], mask: Band) -> Iterator[int]:
    """Each hop in which any rank sees a key, from the last rank on, which has most to see."""
    placed = sorted((k.start, k.start + k.length, rank) for rank, runs in enumerate(held) for k in runs if k.length)
    starts, ends, owners = ([run[at] for run in placed] for at in range(3))
    for rank in reversed(range(0 if mask.is_empty else len(queries))):
        for q in queries[rank]:
            first = 0 if mask.left is None else bisect_right(ends, q.start - mask.left)
            stop = len(placed) if mask.right is None else bisect_left(starts, q.start + q.length + mask.right)
            yield from ((rank - owner) % len(held) for owner in owners[first : stop if q.length else 0])


def there_and_back(steps: Sequence[Step]) -> tuple[Step, ...]:
    """own, 1, 2, … → half of own, 1, 2, …, the other half of own; a single step stays as it is.

    What travels first is under way during the first half, what comes home last during the second."""
    own, *others = steps
    if not others:
        return (own,)
    first, second = halves(own.tiles)
    return Step(own.source, first), *others, Step(own.source, second)
