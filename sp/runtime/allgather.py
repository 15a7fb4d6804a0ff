"""The all-gather: keys and values of all ranks come at once, their gradients go home at once.

B batch · G key/value heads · S local keys · T keys of one source rank · D, E head sizes of k and v

    forward     rank 0 computes on k0 while k1, k2, … arrive, then on k1, k2, … in the order of its plan
    backward    the same; then each dk goes to its owner, who computes on the second half of its own keys meanwhile

Latency of one collective instead of one for each step, for memory: all keys and values, and in backward as many
gradients.  Nothing is gathered where, under a narrow window, no rank needs another's keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from sp.plan import Plan, Step
from sp.runtime.block import Block
from sp.runtime.comm import Exchange, start_all_to_all, start_gather
from sp.runtime.stream import Batches, Stream, add_all, keys_of, zero_gradients
from sp.runtime.world import World


def _gathered(
    k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World
) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Each step with the keys and values of its source.  They are under way while the caller computes the first."""
    if len(steps) == 1:
        yield steps[0], k_BGSD, v_BGSE
        return
    own = (k_BGSD, v_BGSE)
    lengths = [keys_of(plan, source) for source in range(world.size)]
    packed = Block.empty(own, lengths[world.rank], k_BGSD.dtype).filled(own)
    gathering = start_gather(world, packed.flat, [(Block.size(own, length),) for length in lengths], "keys and values")
    yield steps[0], k_BGSD, v_BGSE
    buffers = gathering.wait()
    for step in steps[1:]:
        source = step.source
        k, v = own if source == world.rank else Block.over(buffers[source], own, lengths[source]).parts
        yield step, k, v


class _Returned:
    """The parts of dk and dv that this rank finds for each source; an all-to-all brings them to their owners, while
    these compute what is left of their own.

    They travel in the dtype of keys: each part is rounded once, as a kernel's results are, and added in the sums'."""

    def __init__(self, k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World) -> None:
        self._world, self._own = world, zero_gradients(k_BGSD, v_BGSE)
        like, ranks = (k_BGSD, v_BGSE), range(world.size)
        lengths = [keys_of(plan, source) for source in ranks]
        numbers = [Block.size(like, length) for length in lengths]
        self._sources = [step.source for step in steps if step.source != world.rank]
        hops = range(1, len(self._sources) + 1)
        self._to = [numbers[source] if (world.rank - source) % world.size in hops else 0 for source in ranks]
        self._from = [numbers[world.rank] if (rank - world.rank) % world.size in hops else 0 for rank in ranks]
        self._others = k_BGSD.new_zeros(sum(self._to))
        parts = self._others.split(self._to)
        self._blocks = {source: Block.over(parts[source], like, lengths[source]) for source in self._sources}
        self._arriving: Exchange | None = None

    def add(self, step: Step, batches: Batches) -> None:
        """What this rank finds in `step`; after the last of the others', all go home."""
        if step.source == self._world.rank:
            add_all(batches, *self._own)
            return
        block = self._blocks[step.source]
        sums = Block.empty(self._own, block.parts[0].shape[2], self._own[0].dtype)
        sums.flat.zero_()
        add_all(batches, *sums.parts)
        block.flat.copy_(sums.flat)
        if step.source == self._sources[-1]:
            self._arriving = start_all_to_all(self._world, self._others, self._to, self._from)

    def finish(self) -> tuple[Tensor, Tensor]:
        """The complete dk_BGSD and dv_BGSE of this rank's own keys, to which the others' are added in their order."""
        dk, dv = self._own
        if self._arriving is not None:
            for flat in self._arriving.wait().split(self._from):
                if flat.numel():
                    found = Block.over(flat, self._own, dk.shape[2])
                    dk.add_(found.parts[0])
                    dv.add_(found.parts[1])
        return dk, dv


ALL_GATHER = Stream(_gathered, _Returned)
