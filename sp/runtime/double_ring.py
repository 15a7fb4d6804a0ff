"""The ring of rings: keys and values go round among neighbours, and once per turn over the slow links to the next ring.

B batch · H query heads · G key/value heads · S local queries · T keys of one source rank · D, E head sizes of k and v

    mesh 2 x 2       turn 0           turn 1
                     step 0  step 1   step 2  step 3
    ring 0  rank 0   k0      k1       k2      k3
            rank 1   k1      k0       k3      k2
    ring 1  rank 2   k2      k3       k0      k1
            rank 3   k3      k2       k1      k0

What a turn begins with goes on at once, while it also goes round: the slow links have the time of a whole turn.  So
have they in backward: each turn makes sums of its own, of the gradients that this ring finds.  They go round behind the
keys, the sums of earlier rings are added to them, and they travel during the next turn; at the end they go home.  Every
block crosses the slow links once per turn.  Gu et al. 2024 (LoongTrain), arXiv 2406.18485, section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from sp.plan import Plan, Step
from sp.runtime.block import Block
from sp.runtime.comm import World
from sp.runtime.ring import GRADIENTS, KEYS, Flight, Sums, empty_sums, send, travel
from sp.runtime.stream import Parts, Stream, keys_of


def _turns(plan: Plan, steps: tuple[Step, ...]) -> list[tuple[Step, ...]]:
    """The steps of each turn; under a narrow window the last one may end early."""
    size = plan.inner or plan.world
    return [steps[begin : begin + size] for begin in range(0, len(steps), size)]


def _travel(
    k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World
) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Each step with the keys and values of its source.  Those of the next turn are under way during a whole one."""
    k_BGTD, v_BGTE, block = k_BGSD, v_BGSE, None
    turns = _turns(plan, steps)
    for turn, following in zip(turns, (*turns[1:], None), strict=True):
        flight = None
        if following is not None:
            block = block or Block.packed(k_BGSD, v_BGSE)
            arriving = Block.empty(k_BGSD, v_BGSE, keys_of(plan, following[0].source), k_BGSD.dtype)
            flight = send(block, arriving, 1, KEYS, world.outer)
        yield from travel(k_BGTD, v_BGTE, plan, turn, world.inner, block)
        if flight is not None:
            block = flight.land()
            k_BGTD, v_BGTE = block.k_BGTD, block.v_BGTE


class _Sums:
    """The sums of dk and dv of this turn, which go round with its keys; those of earlier rings, on their way here."""

    def __init__(self, k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World) -> None:
        self._about, self._world = (k_BGSD, v_BGSE, plan), world
        self._own, self._turns = steps[0].source, {turn[0].source: turn for turn in _turns(plan, steps)}
        self._turn = self._start(self._own)
        self._flight: Flight | None = None

    def add(self, step: Step, parts: Parts) -> None:
        """Add what this rank found in `step`; while it was computed, a turn before it has brought its sums round."""
        if step.source in self._turns and step.source != self._own:
            self._flight = self._send(self._landed(), step.source, 1)
            self._turn = self._start(step.source)
        self._turn.add(step, parts)

    def finish(self) -> tuple[Tensor, Tensor]:
        """The complete dk_BGSD and dv_BGSE of this rank's own keys and values."""
        sums, turns = self._landed(), len(self._turns)
        if turns > 1:
            sums = self._send(sums, self._own, 1 - turns).land()
        return sums.k_BGTD, sums.v_BGTE

    def _landed(self) -> Block:
        """What all rings so far have found for the keys that the turn began with."""
        sums = self._turn.land()
        if self._flight is not None:
            sums.flat.add_(self._flight.land().flat)
        return sums

    def _start(self, source: int) -> Sums:
        return Sums(*self._about, self._turns[source], self._world.inner)

    def _send(self, sums: Block, source: int, distance: int) -> Flight:
        """To the ring so far on; what comes is of `source`."""
        return send(sums, empty_sums(*self._about, source), distance, GRADIENTS, self._world.outer)


DOUBLE_RING = Stream(_travel, _Sums)
