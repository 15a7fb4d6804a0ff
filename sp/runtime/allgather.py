"""The all-gather: keys and values of all ranks come at once, their gradients go home at once.

B batch · G key/value heads · S local keys · T keys of one source rank · D, E head sizes of k and v

    forward     rank 0 computes on k0 while k1, k2, … arrive, then on k1, k2, … in the order of its plan
    backward    the same, then each dk goes to its owner, who adds them in the order of ranks

Latency of one collective instead of one for each step, for memory: all keys and values, and in backward the sums of all
their gradients.  Nothing is gathered where, under a narrow window, no rank needs another's keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from sp.plan import Plan, Step
from sp.runtime.block import Block
from sp.runtime.comm import World, all_to_all, start_gather
from sp.runtime.merge import accumulation_dtype
from sp.runtime.stream import Parts, Stream, keys_of


def _gathered(
    k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World
) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Each step with the keys and values of its source.  They are under way while the caller computes the first."""
    if len(steps) == 1:
        yield steps[0], k_BGSD, v_BGSE
        return
    lengths = [keys_of(plan, source) for source in range(world.size)]
    shapes = [(Block.size(k_BGSD, length) + Block.size(v_BGSE, length),) for length in lengths]
    gathering = start_gather(world, Block.packed(k_BGSD, v_BGSE).flat, shapes)
    yield steps[0], k_BGSD, v_BGSE
    buffers = gathering.wait()
    for step in steps[1:]:
        block = Block.over(buffers[step.source], k_BGSD, v_BGSE, lengths[step.source])
        yield step, block.k_BGTD, block.v_BGTE


class _Returned:
    """The parts of dk and dv that this rank finds for each source; an all-to-all brings them to their owners."""

    def __init__(self, k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World) -> None:
        self._k_BGSD, self._v_BGSE, self._world = k_BGSD, v_BGSE, world
        self._hops, ranks = range(1, len(steps)), range(world.size)
        lengths = [keys_of(plan, source) for source in ranks]
        numbers = [Block.size(k_BGSD, length) + Block.size(v_BGSE, length) for length in lengths]
        self._to = [numbers[source] if self._has_work(world.rank, source) else 0 for source in ranks]
        self._from = [numbers[world.rank] if self._has_work(rank, world.rank) else 0 for rank in ranks]
        dtype = accumulation_dtype(k_BGSD.dtype)
        own, self._others = (k_BGSD.new_zeros(size, dtype=dtype) for size in (numbers[world.rank], sum(self._to)))
        parts = list(self._others.split(self._to))
        parts[world.rank] = own
        sources = [step.source for step in steps]
        self._blocks = {source: Block.over(parts[source], k_BGSD, v_BGSE, lengths[source]) for source in sources}

    def _has_work(self, rank: int, source: int) -> bool:
        """Whether `rank` computes on the keys of `source`, another rank."""
        return (rank - source) % self._world.size in self._hops

    def add(self, step: Step, parts: Parts) -> None:
        """What this rank found in `step`."""
        self._blocks[step.source].add(parts)

    def finish(self) -> tuple[Tensor, Tensor]:
        """The complete dk_BGSD and dv_BGSE of this rank's own keys, added in the order of ranks."""
        own = self._blocks[self._world.rank]
        if not self._hops:
            return own.k_BGTD, own.v_BGTE
        parts = list(all_to_all(self._world, self._others, self._to, self._from).split(self._from))
        parts[self._world.rank] = own.flat
        total, *others = [part for part, hop in zip(parts, self._from, strict=True) if hop or part is own.flat]
        for part in others:
            total.add_(part)
        block = Block.over(total, self._k_BGSD, self._v_BGSE, own.k_BGTD.shape[2])
        return block.k_BGTD, block.v_BGTE


ALL_GATHER = Stream(_gathered, _Returned)
