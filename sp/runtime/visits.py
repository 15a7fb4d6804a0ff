"""Visits: the ring the other way about, keys and values stay and queries travel, where that is less (`sp.traffic`).

B batch · H query heads · G key/value heads · S local queries · D, E head sizes of k and v

    step    0         1         2
    rank 0  q0        q1        q2        a rank computes what the plan of its visitor says of its own keys
    rank 1  q1        q2        q0
    rank 2  q2        q0        q1

What was found for the visitors follows them, merged or added up, and goes home in one hop while each rank computes the
second half of its own queries with its own keys.  The same tiles, kernels and merges as where keys travel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from sp.plan import Plan, Step, one_step, plan_of, there_and_back
from sp.runtime.bits import as_bits, of_bits
from sp.runtime.circle import Circle, Results
from sp.runtime.kernels import Kernel
from sp.runtime.merge import Accumulator, accumulation_dtype
from sp.runtime.scores import BoundScore
from sp.runtime.sink import add_sink_gradient, with_sink
from sp.runtime.stream import Batches, Saved, add_all, attend, attend_back, working_steps, zero_gradients
from sp.runtime.world import World


@dataclass(frozen=True)
class _Visit:
    """Queries of `visitor` at this rank.  step: of the visitor's plan, against this rank's keys."""

    visitor: int
    step: Step
    score: BoundScore | None


def visits_forward(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    plan: Plan,
    kernel: Kernel,
    scale: float,
    world: World,
    score: BoundScore | None,
) -> tuple[Tensor, Tensor]:
    """As `Stream.forward`."""
    visits, value_size = _visits(plan, score, world), v_BGSE.shape[3]
    circle, own = _circle(plan, visits, world), Accumulator(q_BHSD, value_size)
    # Shapes only: of the output and of the logarithms of its sums.
    like = [q_BHSD.new_empty(()).expand(*q_BHSD.shape[:3], width) for width in (value_size, 1)]
    results = Results(circle, like, accumulation_dtype(q_BHSD.dtype))
    for visit, (q,) in _meetings(visits, circle, (q_BHSD,)):
        mine = visit.visitor == world.rank
        found = own if mine else Accumulator(q, value_size)
        attend(found, q, [(visit.step, k_BGSD, v_BGSE)], kernel, scale, visit.score)
        if mine:
            continue
        block, begun = results.arrived(visit.visitor)
        out, lse = found.state()
        if begun:
            so_far = block.parts[0], block.parts[1].squeeze(-1)
            Accumulator(q, value_size, so_far).merge(0, q.shape[2], out, lse)
        else:
            block.filled([out, lse.unsqueeze(-1)])
        results.pass_on(block, visit.visitor)
    home = results.home()
    if home is not None:
        own.state()  # memory of its own: what comes home lies in one buffer, and the results of an op may not
        own.merge(0, q_BHSD.shape[2], home.parts[0], home.parts[1].squeeze(-1))
    return with_sink(own, score).finish()


def visits_backward(
    grad_BHSE: Tensor,
    saved: Saved,
    plan: Plan,
    kernel: Kernel,
    scale: float,
    world: World,
    score: BoundScore | None,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """As `Stream.backward`."""
    visits = _visits(plan, score, world)
    circle, totals = _circle(plan, visits, world), [] if score is None else score.empty_gradients()
    q, lse_dtype = saved.q_BHSD, saved.lse_BHS.dtype
    results, here = Results(circle, (q,), accumulation_dtype(q.dtype)), _Here(saved)
    dq_BHSD: Tensor | None = None
    own = (q, grad_BHSE, saved.out_BHSE, as_bits(saved.lse_BHS, q.dtype))
    for visit, (q_there, grad, out, bits) in _meetings(visits, circle, own):
        theirs = Saved(q_there, saved.k_BGSD, saved.v_BGSE, out, of_bits(bits, lse_dtype))
        arrivals = [(visit.step, saved.k_BGSD, saved.v_BGSE)]
        dq = attend_back(grad, theirs, arrivals, here, kernel, scale, visit.score, totals)
        if visit.visitor == world.rank:
            dq_BHSD = dq if dq_BHSD is None else dq_BHSD.add_(dq)
            continue
        block, begun = results.arrived(visit.visitor)
        (sums,) = block.parts
        sums.add_(dq) if begun else sums.copy_(dq)
        results.pass_on(block, visit.visitor)
    assert dq_BHSD is not None, "a rank visits itself first"
    home = results.home()
    if home is not None:
        dq_BHSD.add_(home.parts[0])
    if score is not None and plan.counts_queries:
        add_sink_gradient(grad_BHSE, saved.out_BHSE, saved.lse_BHS, score, totals)
    return dq_BHSD, *here.finish(), totals


class _Here:
    """The gradients of keys and values stay with their owner."""

    def __init__(self, saved: Saved) -> None:
        self._sums = zero_gradients(saved.k_BGSD, saved.v_BGSE)

    def add(self, step: Step, batches: Batches) -> None:
        add_all(batches, *self._sums)

    def finish(self) -> tuple[Tensor, Tensor]:
        return self._sums


def _visits(plan: Plan, score: BoundScore | None, world: World) -> tuple[_Visit, ...]:
    """Who comes in which step, of as many as have work on any rank."""
    count = len(working_steps(plan, score))
    visitors = [(world.rank + hop) % world.size for hop in range(1, count)]
    plans = [plan, *(plan_of(plan, visitor) for visitor in visitors)]
    met = tuple(Step(each.rank, one_step(each, world.rank).tiles) for each in plans)
    scores = {each.rank: None if score is None else replace(score, plan=each) for each in plans} | {world.rank: score}
    return tuple(
        _Visit(step.source, replace(step, source=world.rank), scores[step.source]) for step in there_and_back(met)
    )


def _circle(plan: Plan, visits: Sequence[_Visit], world: World) -> Circle:
    """Queries go backwards, so that in each step a rank meets those whose plan has its keys in that step."""
    lengths = tuple(plan.layout.local_length(plan.length, rank, world.size) for rank in range(world.size))
    return Circle(world, tuple(visit.visitor for visit in visits), lengths, way=-1)


def _meetings(
    visits: Sequence[_Visit], circle: Circle, own: Sequence[Tensor]
) -> Iterator[tuple[_Visit, tuple[Tensor, ...]]]:
    return zip(visits, circle.bring(own), strict=True)
