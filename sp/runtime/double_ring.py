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
keys, the sums of earlier rings are added to them, and they travel during the next turn; at the end they go home, while
half of the own keys is computed on.  Every block crosses the slow links once per turn.
Gu et al. 2024 (LoongTrain), arXiv 2406.18485, section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from torch import Tensor

from sp.plan import Plan, Step
from sp.runtime.block import Block
from sp.runtime.circle import RESULTS, VISITORS, Circle, Flight, Results, Rooms, send
from sp.runtime.stream import Batches, Stream, add_all, keys_of, zero_gradients
from sp.runtime.world import World


def _turns(plan: Plan, steps: tuple[Step, ...]) -> list[tuple[Step, ...]]:
    """The steps of each turn; under a narrow window the last one may end early."""
    size = plan.inner or plan.world
    return [steps[begin : begin + size] for begin in range(0, len(steps), size)]


def _apart(steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The steps of the turns, and the last one if that is once more against the rank's own keys, in backward."""
    again = len(steps) > 1 and steps[-1].source == steps[0].source
    return (steps[:-1], steps[-1:]) if again else (steps, ())


def _circle(plan: Plan, turn: tuple[Step, ...], world: World) -> Circle:
    lengths = tuple(keys_of(plan, rank) for rank in range(plan.world))
    return Circle(world.inner, tuple(step.source for step in turn), lengths)


def _travel(
    k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World
) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Each step with the keys and values of its source.  Those of the next turn are under way during a whole one."""
    own, block, (steps, again) = (k_BGSD, v_BGSE), None, _apart(steps)
    turns, longest = _turns(plan, steps), max(keys_of(plan, rank) for rank in range(plan.world))
    begun, rooms = own, Rooms(own, longest, k_BGSD.dtype)
    for number, (turn, following) in enumerate(zip(turns, (*turns[1:], None), strict=True), 1):
        flight = None
        if following is not None:
            block = block or rooms.next(k_BGSD.shape[2]).filled(own)
            arriving = rooms.next(keys_of(plan, following[0].source))
            flight = send(block, arriving, 1, VISITORS, world.outer, "turn {} of {}", number, len(turns))
        here = _circle(plan, turn, world).bring(begun, block)
        yield from ((step, k, v) for step, (k, v) in zip(turn, here, strict=True))
        if flight is not None:
            block = flight.land()
            begun = block.parts[0], block.parts[1]
    yield from ((step, k_BGSD, v_BGSE) for step in again)


class _Sums:
    """The sums of dk and dv of this turn, which go round with its keys; those of earlier rings, on their way here.

    What other rings find for the rank's own keys comes home at the end, what its own ring finds after a turn."""

    def __init__(self, k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World) -> None:
        self._like, self._plan, self._world = (k_BGSD, v_BGSE), plan, world
        steps, _ = _apart(steps)
        turns = _turns(plan, steps)
        self._turns = {turn[0].source: turn for turn in turns}
        self._first, self._last, self._own = steps[0].source, steps[-1].source, zero_gradients(k_BGSD, v_BGSE)
        self._results = self._round(turns[0])
        self._here: Block | None = None  # sums of what this turn began with, if that is not the rank's own
        self._flight: Flight | None = None  # what other rings have found for it; at the end, for the rank's own

    def add(self, step: Step, batches: Batches) -> None:
        """Add what this rank finds in `step`; while a turn's first is computed, those of the turn before come round."""
        if step.source == self._first:
            add_all(batches, *self._own)
            return
        first = next(batches, [])
        if step.source in self._turns:
            self._hand_on(step.source)
            self._here = self._block(step.source)
            sums, begun = self._here, False
        else:
            sums, begun = self._results.arrived(step.source)
        if not begun:
            sums.flat.zero_()
        add_all(chain([first], batches), *sums.parts)
        if sums is not self._here:
            self._results.pass_on(sums, step.source)
        if step.source == self._last and self._here is not None:
            self._flight = self._send(self._turn_of(self._here), self._first, 1 - len(self._turns))

    def finish(self) -> tuple[Tensor, Tensor]:
        """The complete dk_BGSD and dv_BGSE of this rank's own keys and values."""
        if self._here is None:
            self._add_own(self._results.home())
        elif self._flight is not None:
            self._add_own(self._flight.land())
        return self._own

    def _hand_on(self, source: int) -> None:
        """End a turn: to the next ring with the sums of what it began with.  The next turn begins with `source`."""
        if self._here is None:
            self._add_own(self._results.home())
        else:
            self._flight = self._send(self._turn_of(self._here), source, 1)
        self._results = self._round(self._turns[source])

    def _turn_of(self, here: Block) -> Block:
        """What all rings so far have found for what the turn began with."""
        home = self._results.home()
        if home is not None:
            here.flat.add_(home.flat)
        if self._flight is not None:
            here.flat.add_(self._flight.land().flat)
        return here

    def _add_own(self, found: Block | None) -> None:
        if found is not None:
            for total, part in zip(self._own, found.parts, strict=True):
                total.add_(part)

    def _round(self, turn: tuple[Step, ...]) -> Results:
        return Results(_circle(self._plan, turn, self._world), self._like, self._own[0].dtype)

    def _block(self, source: int) -> Block:
        return Block.empty(self._like, keys_of(self._plan, source), self._own[0].dtype)

    def _send(self, sums: Block, source: int, way: int) -> Flight:
        """To the ring so far on; what comes is of `source`."""
        return send(sums, self._block(source), way, RESULTS, self._world.outer, "the results of a turn")


DOUBLE_RING = Stream(_travel, _Sums)
