"""The definitions that closed forms are held against: every rank, every step, every hop."""

from sp.costs.machine import Machine
from sp.costs.phase import Job
from sp.costs.work import Work, step_work
from sp.mask import Band
from sp.plan import Tile, make_plan


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
    """Seconds of a ring, hop by hop, and the bytes that a rank sends.

    In a step the next keys are under way, and in backward the gradients of others' keys that the step before made; a
    step ends when it is computed and what was under way has come.  In backward the step on the rank's own keys is cut
    in two, first and last, so that the last gradients go home in one.  It ends where nobody has work."""
    while steps[-1] == Work():
        steps = steps[:-1]
    seconds, hops = [job.compute(work, backward) + job.merge(work, backward) for work in steps], len(steps) - 1
    if backward and hops:
        seconds = [seconds[0] / 2, *seconds[1:], seconds[0] / 2]
    clock, sent = 0.0, 0.0
    for number, computed in enumerate(seconds):
        under_way = job.kv_bytes if number < hops else 0
        under_way += job.gradient_bytes if backward and number > 1 else 0
        transfer = job.machine.hop(under_way, job.world) if under_way else 0.0
        clock += max(computed, transfer)
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
