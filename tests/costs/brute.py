"""The definitions that closed forms are held against: every rank, every step, every hop."""

from sp.costs.machine import Machine
from sp.costs.phase import Job
from sp.costs.work import Work, step_work
from sp.mask import Band
from sp.plan import make_plan
from sp.tile import Tile


def steps_of_all_ranks(layout: str, mask: Band, local: int, world: int, machine: Machine) -> list[list[Work]]:
    """[step][rank], from the plans that the runtime executes."""
    plans = [make_plan(layout, mask, local * world, world, rank) for rank in range(world)]
    return [[step_work(plan.steps[hop].tiles, machine) for plan in plans] for hop in range(world)]


def busiest(ranks: list[Work]) -> Work:
    return max(ranks, key=lambda work: (work.cost, work.queries))


def computed_pairs(tile: Tile, rows: int, columns: int) -> int:
    """Pairs of all kernel tiles in which something is visible."""
    height, width = tile.q1 - tile.q0, tile.k1 - tile.k0
    total = 0
    for x0 in range(0, height, rows):
        for y0 in range(0, width, columns):
            block = [(x, y) for x in range(x0, min(x0 + rows, height)) for y in range(y0, min(y0 + columns, width))]
            seen = any(tile.visible(tile.q0 + x, tile.k0 + y) for x, y in block)
            total += len(block) if seen else 0
    return total


def ring_clock(job: Job, steps: list[Work], backward: bool) -> tuple[float, float]:
    """Seconds of a ring, step by step, and the bytes that a rank sends.

    In a step the tensors of the next one are under way, and what the step before made for theirs; a step ends when it
    is computed and what was under way has come.  It ends where nobody has work.  Where something goes home, half of the
    first step is left for that time."""
    while steps[-1] == Work():
        steps = steps[:-1]
    there, back = job.hop(backward)
    seconds = [job.compute(work, backward) + job.merge(work, backward) for work in steps]
    if len(steps) == 1:
        return seconds[0], 0.0
    if back:
        seconds = [seconds[0] / 2, *seconds[1:], seconds[0] / 2]
    clock, sent, last = 0.0, 0.0, len(steps) - 1
    for number, computed in enumerate(seconds):
        under_way = there if number < last else 0
        under_way += back if number >= 2 or number > last else 0
        clock += max(computed, job.machine.hop(under_way, job.world) if under_way else 0.0)
        sent += under_way
    return clock, sent


def free_ring_clock(job: Job, steps: list[list[Work]]) -> float:
    """Seconds of a forward ring in which no rank waits for others than its neighbours.  steps: [step][rank].

    A rank posts the exchange for its next step when a step begins; the neighbour before it must have done so too."""
    world = len(steps)
    transfer = job.machine.hop(job.kv_bytes, world) if world > 1 else 0.0
    begin = [0.0] * world
    for number, ranks in enumerate(steps):
        done = [at + job.compute(work, False) + job.merge(work, False) for at, work in zip(begin, ranks, strict=True)]
        if number == world - 1:
            return max(done)
        posted = [max(begin[rank], begin[rank - 1]) for rank in range(world)]
        begin = [max(done[rank], posted[rank] + transfer) for rank in range(world)]
    raise AssertionError("a ring without steps")
