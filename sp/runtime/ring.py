"""The ring: keys and values travel from rank to rank, queries stay; or queries do (`visits`), where that is less.

B batch · H query heads · G key/value heads · S local queries · T keys of one source rank · D, E head sizes of k and v

    step    0         1         2
    rank 0  k0        k2        k1        what a rank computes in each step stands in its plan
    rank 1  k1        k0        k2
    rank 2  k2        k1        k0

The exchange for the next step is posted before a step is computed and awaited after it.  In backward the gradients of
keys and values travel too, one step behind, and go home in one hop from the last step in which any rank has work: a
rank's own keys are computed on in two halves, one while the first neighbour's keys come, one while the sums go home.
Liu et al. 2023, arXiv 2310.01889.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from torch import Tensor

from sp.plan import Plan, Step
from sp.runtime.circle import Circle, Results
from sp.runtime.kernels import Kernel
from sp.runtime.merge import accumulation_dtype
from sp.runtime.scores import BoundScore
from sp.runtime.stream import Batches, Saved, Stream, add_all, keys_of, zero_gradients
from sp.runtime.visits import visits_backward, visits_forward
from sp.runtime.world import World
from sp.traffic import QUERIES, Widths, travellers


def _circle(plan: Plan, steps: tuple[Step, ...], world: World) -> Circle:
    lengths = tuple(keys_of(plan, rank) for rank in range(world.size))
    return Circle(world, tuple(step.source for step in steps), lengths)


def _travel(
    k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World
) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Each step with the keys and values of its source."""
    here = _circle(plan, steps, world).bring((k_BGSD, v_BGSE))
    return ((step, k_BGTD, v_BGTE) for step, (k_BGTD, v_BGTE) in zip(steps, here, strict=True))


class _Sums:
    """The sums of dk and dv of the source whose keys are here; they follow the keys and end at their owner."""

    def __init__(self, k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World) -> None:
        self._rank, self._own = world.rank, zero_gradients(k_BGSD, v_BGSE)
        circle, dtype = _circle(plan, steps, world), accumulation_dtype(k_BGSD.dtype)
        self._results = Results(circle, (k_BGSD, v_BGSE), dtype)

    def add(self, step: Step, batches: Batches) -> None:
        """Add what this rank finds in `step`, and send the sums on: to the next rank, or home after the last."""
        if step.source == self._rank:
            add_all(batches, *self._own)
            return
        first = next(batches, [])
        sums, begun = self._results.arrived(step.source)
        if not begun:
            sums.flat.zero_()
        add_all(chain([first], batches), *sums.parts)
        self._results.pass_on(sums, step.source)

    def finish(self) -> tuple[Tensor, Tensor]:
        """The complete dk_BGSD and dv_BGSE of this rank's own keys and values."""
        dk, dv = self._own
        home = self._results.home()
        if home is not None:
            dk.add_(home.parts[0])
            dv.add_(home.parts[1])
        return dk, dv


RING = Stream(_travel, _Sums)


def ring_forward(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    plan: Plan,
    kernel: Kernel,
    scale: float,
    world: World,
    score: BoundScore | None,
) -> tuple[Tensor, Tensor]:
    """As `Stream.forward`; keys and values travel, or queries."""
    run = visits_forward if _visited(q_BHSD, k_BGSD, v_BGSE, plan, backward=False) else RING.forward
    return run(q_BHSD, k_BGSD, v_BGSE, plan, kernel, scale, world, score)


def ring_backward(
    grad_BHSE: Tensor,
    saved: Saved,
    plan: Plan,
    kernel: Kernel,
    scale: float,
    world: World,
    score: BoundScore | None,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """As `Stream.backward`; keys, values and their gradients travel, or queries and what comes of them."""
    visited = _visited(saved.q_BHSD, saved.k_BGSD, saved.v_BGSE, plan, backward=True)
    run = visits_backward if visited else RING.backward
    return run(grad_BHSE, saved, plan, kernel, scale, world, score)


def _visited(q_BHSD: Tensor, k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, backward: bool) -> bool:
    """Whether queries travel: the same on all ranks, and not the same in both directions."""
    (_, heads, _, size), (_, groups, _, value_size) = q_BHSD.shape, v_BGSE.shape
    widths = Widths(heads, groups, size, value_size, q_BHSD.element_size())
    return travellers(plan.length, plan.keys, widths, backward) == QUERIES
