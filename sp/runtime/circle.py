"""Circles: tensors that visit all ranks in turn, hop by hop, and results that follow them and end at their owners.

W the size of any last dim; all tensors are laid out [batch, tokens, heads, W]

    here     rank 0   rank 1   rank 2        way = 1
    step 0   own 0    own 1    own 2
    step 1   of 2     of 0     of 1          their results begin here …
    step 2   of 1     of 2     of 0          … are here at the end of the step, added to, and sent to their owners
    step 3   own 0    own 1    own 2         which compute meanwhile

The exchange for a step is posted before the step ahead of it is computed, and awaited after it.  Two buffers take turns
for what travels, and two for the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sp.runtime.block import Block
from sp.runtime.comm import Exchange, post_exchange
from sp.runtime.world import World

VISITORS, RESULTS = 0, 1  # tags: both are under way at the same time


@dataclass(frozen=True)
class Circle:
    """sources: whose tensors are here in each step; those that begin here first, and maybe once more at the end.
    lengths: how many tokens each rank's tensors have.  way: how many ranks further on tensors are sent in each hop."""

    world: World
    sources: tuple[int, ...]
    lengths: tuple[int, ...]
    way: int = 1

    @property
    def own(self) -> int:
        return self.sources[0]

    def bring(self, own: Sequence[Tensor], block: Block | None = None) -> Iterator[tuple[Tensor, ...]]:
        """The tensors of each of `sources`.  The next ones are under way while the caller computes.

        block: `own`, if they are in one already."""
        rooms = Rooms(own, max(self.lengths), own[0].dtype)
        steps = zip(self.sources, (*self.sources[1:], self.own), strict=True)
        for number, (source, following) in enumerate(steps, 1):
            flight = None
            if following != self.own:
                block = block or rooms.next(self.lengths[self.own]).filled(own)
                arriving = rooms.next(self.lengths[following])
                step = "step {} of {}", number, len(self.sources)
                flight = send(block, arriving, self.way, VISITORS, self.world, *step)
            yield tuple(own) if block is None or source == self.own else block.parts
            if flight is not None:
                block = flight.land()


class Results:
    """What ranks find for the owner of the tensors that visit them; it follows these, one step behind."""

    def __init__(self, circle: Circle, like: Sequence[Tensor], dtype: torch.dtype) -> None:
        """like: tensors of the shapes of the results, but for the number of tokens."""
        self._circle = circle
        self._rooms = Rooms(like, max(circle.lengths), dtype)
        self._following = iter([source for source in circle.sources if source != circle.own][1:])
        self._flight: Flight | None = None

    def arrived(self, source: int) -> tuple[Block, bool]:
        """What is known so far for the visitor from `source`, and whether that is anything: if not, uninitialised."""
        if self._flight is None:
            return self._rooms.next(self._circle.lengths[source]), False
        return self._flight.land(), True

    def pass_on(self, block: Block, source: int) -> None:
        """To the rank that `source` visits next, or to `source` itself if this was the last."""
        circle, following = self._circle, next(self._following, None)
        way = circle.way if following is not None else source - circle.own
        room = self._rooms.next(circle.lengths[circle.own if following is None else following])
        step = "the results of step {} of {}", circle.sources.index(source) + 1, len(circle.sources)
        self._flight = send(block, room, way, RESULTS, circle.world, *step)

    def home(self) -> Block | None:
        """What the others have found for what began here; None if there are none."""
        return None if self._flight is None else self._flight.land()


class Rooms:
    """Two buffers that take turns: what was sent from one has left it when the other is sent."""

    def __init__(self, like: Sequence[Tensor], length: int, dtype: torch.dtype) -> None:
        """like: tensors of the shapes of the parts, but for the number of tokens, which is at most `length`."""
        self._like, self._most, self._dtype = like, Block.size(like, length), dtype
        self._flats: list[Tensor] = []

    def next(self, length: int) -> Block:
        """Uninitialised."""
        flat = self._like[0].new_empty(self._most, dtype=self._dtype) if len(self._flats) < 2 else self._flats.pop(0)
        self._flats.append(flat)
        return Block.over(flat[: Block.size(self._like, length)], self._like, length)


@dataclass(frozen=True)
class Flight:
    """A block on its way to this rank."""

    exchange: Exchange
    block: Block

    def land(self) -> Block:
        self.exchange.wait()
        return self.block


def send(block: Block, arriving: Block, way: int, tag: int, world: World, step: str, *values: object) -> Flight:
    """Every rank sends to the one `way` further on, and receives from the one as far behind.

    step: for errors, with places for `values`."""
    to, source = (world.rank + way) % world.size, (world.rank - way) % world.size
    return Flight(post_exchange(world, block.flat, to, arriving.flat, source, tag, step, *values), arriving)
