"""When each rank works and when it waits, in even shares: 1 is what each would take if all had as much to do.

    ring, 2 ranks, 2 steps     rank 0  ████░░░░░░░░        0.5 of work, 1 of waiting
                               rank 1  ████████████        1.5 of work

A ring goes in step: what a rank needs next comes from its neighbour, who has it only once it has begun its own step.
So each step lasts as long as for the rank that has most to do in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sp.show.pictures.tiling import Block, Tiling


@dataclass(frozen=True)
class Segment:
    """A rank works from `start` for `work`, then waits up to `stop`.  step: in which; None is all of them together."""

    start: float
    work: float
    stop: float
    step: int | None


@dataclass(frozen=True)
class Lane:
    """What one drawn rank does."""

    rank: int
    segments: tuple[Segment, ...]

    @property
    def work(self) -> float:
        return sum(segment.work for segment in self.segments)


@dataclass(frozen=True)
class Timeline:
    """length: until the last rank is done.  most: the work of the rank that has most."""

    lanes: tuple[Lane, ...]
    length: float
    most: float

    @property
    def waiting(self) -> float:
        """The share of all ranks' time in which they wait."""
        return 1 - 1 / self.length if self.length else 0.0


def in_step(tiling: Tiling) -> Timeline:
    """Of a ring whose ranks are all drawn."""
    assert tiling.is_whole, "a rank that is not drawn may be the slowest"
    share = sum(block.area for block in tiling.blocks) / tiling.world or 1
    slots = [max(block.area for block in tiling.blocks if block.group == step) for step in range(len(tiling.steps))]
    ends = [sum(slots[: step + 1]) for step in range(len(slots))]
    lanes = tuple(
        Lane(rank, _segments([block for block in tiling.blocks if block.rank == rank], slots, ends, share))
        for rank in tiling.ranks
    )
    return Timeline(lanes, ends[-1] / share, max(lane.work for lane in lanes))


def _segments(blocks: Sequence[Block], slots: list[int], ends: list[int], share: float) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            (ends[block.group] - slots[block.group]) / share, block.area / share, ends[block.group] / share, block.step
        )
        for block in sorted(blocks, key=lambda block: block.group)
    )


def totals(areas: Sequence[int], ranks: Sequence[int]) -> Timeline:
    """Of all steps together.  areas: of every rank; ranks: those drawn."""
    share, most = sum(areas) / len(areas) or 1, max(areas)
    lanes = tuple(Lane(rank, (Segment(0.0, areas[rank] / share, most / share, None),)) for rank in ranks)
    return Timeline(lanes, most / share, most / share)
