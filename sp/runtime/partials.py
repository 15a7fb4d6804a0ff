"""Partials: queries that every rank has meet keys that stay where they are; partial results travel.

B batch · H query heads · S queries · E value head size

    rank 0   q · k0 k1  →  out, lse  ╮
    rank 1   q · k2 k3  →  out, lse  ┼→ merged on every rank, in the order of ranks
    rank 2   q · k4 k5  →  out, lse  ╯

One all-gather of S rows instead of all keys: for decoding, attention pooling, latents.  All ranks merge the same
numbers in the same order, so that they hold the same bits.  In backward nothing travels: `out` and `lse` are of all
keys, dk and dv belong to the rank's own, and dq is this rank's part of a sum that the graph takes (`sp.replicate`).
Known as flash-decoding, with ranks for splits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sp.plan import Plan
from sp.runtime.comm import all_gather
from sp.runtime.kernels import Kernel
from sp.runtime.merge import Accumulator
from sp.runtime.scores import BoundScore
from sp.runtime.sink import with_sink
from sp.runtime.stream import attend
from sp.runtime.world import World


def partials_forward(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    plan: Plan,
    kernel: Kernel,
    scale: float,
    world: World,
    score: BoundScore | None,
) -> tuple[Tensor, Tensor]:
    """out_BHSE and lse_BHS of all queries over all ranks' keys, on every rank."""
    (step,) = plan.steps
    mine = Accumulator(q_BHSD, v_BGSE.shape[3])
    attend(mine, q_BHSD, [(step, k_BGSD, v_BGSE)], kernel, scale, score)
    total = mine if world.size == 1 else _merged(mine, q_BHSD, world)
    return with_sink(total, score).finish()


def _merged(mine: Accumulator, q_BHSD: Tensor, world: World) -> Accumulator:
    out_BHSE, lse_BHS = mine.state()
    packed_BHSF = torch.cat([out_BHSE, lse_BHS.unsqueeze(-1)], -1)
    total = Accumulator(q_BHSD, out_BHSE.shape[3])
    for part_BHSF in all_gather(world, packed_BHSF, [packed_BHSF.shape] * world.size, "partial results"):
        # Apart: of one row, as of one head that decodes one token, both would stay views of one buffer to the end.
        total.merge(0, q_BHSD.shape[2], part_BHSF[..., :-1], part_BHSF[..., -1].clone())
    return total
