"""The ring: keys and values travel from rank to rank, queries stay.

B batch · H query heads · G key/value heads · S local queries · T keys of one source rank · D, E head sizes of k and v

    step    0         1         2
    rank 0  k0        k2        k1        what a rank computes in each step stands in its plan
    rank 1  k1        k0        k2
    rank 2  k2        k1        k0

The exchange for the next step is posted before a step is computed and awaited after it.  In backward the gradients of
keys and values travel too, one step behind, and go home in one hop from the last step in which any rank has work.
Liu et al. 2023, arXiv 2310.01889.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from sp.plan import Plan, Step
from sp.runtime.block import Block
from sp.runtime.comm import Exchange, World, post_exchange
from sp.runtime.merge import accumulation_dtype
from sp.runtime.stream import Parts, Stream, keys_of

KEYS, GRADIENTS = 0, 1  # tags: both are under way at the same time


@dataclass(frozen=True)
class Flight:
    """A block on its way to this rank."""

    exchange: Exchange
    block: Block

    def land(self) -> Block:
        self.exchange.wait()
        return self.block


def travel(
    k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World, block: Block | None = None
) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Each step with the keys and values of its source.  The next ones are under way while the caller computes.

    block: k and v, if they are in one already."""
    k_BGTD, v_BGTE = k_BGSD, v_BGSE
    for step, following in zip(steps, (*steps[1:], None), strict=True):
        flight = None
        if following is not None:
            block = block or Block.packed(k_BGSD, v_BGSE)
            arriving = Block.empty(k_BGSD, v_BGSE, keys_of(plan, following.source), k_BGSD.dtype)
            flight = send(block, arriving, 1, KEYS, world)
        yield step, k_BGTD, v_BGTE
        if flight is not None:
            block = flight.land()
            k_BGTD, v_BGTE = block.k_BGTD, block.v_BGTE


class Sums:
    """The sums of dk and dv of the source whose keys are here; they follow the keys and end where those began."""

    def __init__(self, k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World) -> None:
        self._k_BGSD, self._v_BGSE, self._plan, self._world = k_BGSD, v_BGSE, plan, world
        self._own, self._following = steps[0].source, iter(steps[1:])
        self._sums = self._empty(self._own)
        self._sums.flat.zero_()
        self._flight: Flight | None = None

    def add(self, step: Step, parts: Parts) -> None:
        """Add what this rank found in `step`, and send the sums on: to the next rank, or home after the last step."""
        if self._flight is not None:
            self._sums = self._flight.land()
        self._sums.add(parts)
        following = next(self._following, None)
        if following is not None:
            self._flight = send(self._sums, self._empty(following.source), 1, GRADIENTS, self._world)
        elif step.source != self._own:
            distance = step.source - self._own
            self._flight = send(self._sums, self._empty(self._own), distance, GRADIENTS, self._world)

    def land(self) -> Block:
        """The complete sums of the source of the first step."""
        return self._sums if self._flight is None else self._flight.land()

    def finish(self) -> tuple[Tensor, Tensor]:
        """The complete dk_BGSD and dv_BGSE of this rank's own keys and values."""
        sums = self.land()
        return sums.k_BGTD, sums.v_BGTE

    def _empty(self, source: int) -> Block:
        return empty_sums(self._k_BGSD, self._v_BGSE, self._plan, source)


def empty_sums(k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, source: int) -> Block:
    """Room for the sums of dk and dv of a source."""
    return Block.empty(k_BGSD, v_BGSE, keys_of(plan, source), accumulation_dtype(k_BGSD.dtype))


def send(block: Block, arriving: Block, distance: int, tag: int, world: World) -> Flight:
    """Every rank sends to the one `distance` further on, and receives from the one as far behind."""
    to, source = (world.rank + distance) % world.size, (world.rank - distance) % world.size
    return Flight(post_exchange(world, block.flat, to, arriving.flat, source, tag), arriving)


RING = Stream(travel, Sums)
