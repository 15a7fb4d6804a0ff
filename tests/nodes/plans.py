"""What plans say about hosts: how much of an attention goes from one to the other."""

from __future__ import annotations

from sp.mask import CAUSAL
from sp.plan import make_plan
from sp.traffic import KEYS, Widths, hop_bytes
from tests.nodes.crossing import HEADS, KV_HEADS, SIZE


def crossings(world: int, ranks: int, inner: int | None) -> int:
    """How many blocks of keys and values, each of one rank, come to the first host in one revolution.

    What is here in a step was with another rank one hop before; what a turn of the double ring begins with, a turn
    before.  ranks: of a host."""
    plan = make_plan("striped", CAUSAL, 4096, world, 0, inner=inner)
    found = 0
    for rank in range(ranks):
        for hop in range(1, world):
            before = hop - (inner if inner and hop % inner == 0 else 1)
            sender = next(other for other in range(world) if plan.source(other, before) == plan.source(rank, hop))
            found += sender // ranks != 0
    return found


def bytes_that_cross(strategy: str, length: int, hosts: int, ranks: int, backward: bool) -> int:
    """From one of `hosts` to the others: in backward, sums of gradients go as far as keys and values."""
    match strategy:
        case "striped":
            blocks = crossings(hosts * ranks, ranks, None)
        case "double_ring":
            blocks = crossings(hosts * ranks, ranks, ranks)
        case _:  # usp: a ring of hosts for each rank of a host, with all of a host's tokens of its share of the heads
            blocks = crossings(hosts, 1, None) * ranks
    widths = Widths(HEADS, KV_HEADS, SIZE, SIZE, item_bytes=4)
    return blocks * length // (hosts * ranks) * sum(hop_bytes(KEYS, widths, backward))
