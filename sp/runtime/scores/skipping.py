"""What a rank skips of its attention, and after which step no rank has any left: the score's verdicts, brought home.

N blocks of queries, M blocks of keys, rank after rank · R ranks
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sp.mask import Band
from sp.plan import Plan, count_steps
from sp.runtime.scores.blocks import HIDDEN, HIDDEN_SOFTLY, MIXED, OPEN, Blocks
from sp.runtime.scores.grid import Side, Verdicts, judge
from sp.score import Score

# A grid has at most so many blocks, times batch and heads where the score depends on them.
_CELLS = 2**22


@dataclass(frozen=True)
class Skipping:
    """steps: in how many of them any rank has work, the same on all ranks.  blocks: by source rank."""

    steps: int
    blocks: tuple[Blocks, ...]


def find_skipping(
    score: Score,
    leaves: Sequence[Tensor],
    plan: Plan,
    block: int,
    device: torch.device,
    all_see: Callable[[], bool],
) -> Skipping:
    """all_see: whether every query of all ranks surely sees a key, so that large negative numbers hide others.

    One transfer from the device, and another one where such numbers could hide something."""
    rows, columns = _sides(score, leaves, plan, (plan.rank,), block, device)
    letters_NM, work_2RR = _letters(judge(score, leaves, rows, columns)), _work(score, leaves, plan, block, device)
    shape_NM, found = letters_NM.shape, torch.cat([letters_NM.flatten(), work_2RR.flatten()]).cpu()
    letters = found[: letters_NM.numel()].numpy().tobytes()
    steps, fewer = (_last(plan, work_RR) for work_RR in found[letters_NM.numel() :].view(work_2RR.shape).tolist())
    if HIDDEN_SOFTLY in letters or fewer < steps:
        softly = all_see()
        steps = fewer if softly else steps
        letters = letters.replace(bytes([HIDDEN_SOFTLY]), bytes([HIDDEN if softly else MIXED]))
    strings = [letters[row * shape_NM[1] : (row + 1) * shape_NM[1]] for row in range(shape_NM[0])]
    begins = accumulate(columns.counts, initial=0)
    blocks = (
        Blocks(rows.edges[0], edges, tuple(string[begin:end] for string in strings))
        for edges, (begin, end) in zip(columns.edges, pairwise(begins), strict=True)
    )
    return Skipping(steps, tuple(blocks))


def _sides(
    score: Score, leaves: Sequence[Tensor], plan: Plan, ranks: Sequence[int], block: int, device: torch.device
) -> tuple[Side, Side]:
    """The queries of `ranks` and all keys, in blocks just wide enough that the grid stays small."""
    queries = [plan.queries.runs(plan.length, rank, plan.world) for rank in ranks]
    keys = [plan.layout.runs(plan.keys, rank, plan.world) for rank in range(plan.world)]
    pairs = sum(run.length for runs in queries for run in runs) * plan.keys
    while _depth(score, leaves) * pairs > _CELLS * block * block:
        block *= 2
    return Side.of(queries, block, device), Side.of(keys, block, device)


def _depth(score: Score, leaves: Sequence[Tensor]) -> int:
    """How many different scores a pair may have, over batch and heads."""
    pairs = zip(score.leaves, leaves, strict=True)
    shapes = [(1, x.shape[1]) if leaf.form == "table" else x.shape for leaf, x in pairs]
    batch, heads = (max((shape[dim] for shape in shapes if len(shape) > 1), default=1) for dim in (0, 1))
    return batch * heads


def _letters(verdicts: Verdicts) -> Tensor:
    letters_NM = torch.full_like(verdicts.open_NM, MIXED, dtype=torch.uint8)
    letters_NM.masked_fill_(verdicts.open_NM, OPEN).masked_fill_(verdicts.softly_NM, HIDDEN_SOFTLY)
    return letters_NM.masked_fill_(verdicts.hidden_NM, HIDDEN)


def _work(score: Score, leaves: Sequence[Tensor], plan: Plan, block: int, device: torch.device) -> Tensor:
    """Whether a rank may have work against a source, if only -inf hides and if large negative numbers do: uint8 2RR.

    From global leaves and the same blocks on every rank.  All of it where the plan needs one step alone."""
    if count_steps(plan) == 1:
        return torch.ones((2, plan.world, plan.world), dtype=torch.uint8, device=device)
    rows, columns = _sides(score, leaves, plan, range(plan.world), block, device)
    verdicts, banded_NM = judge(score, leaves, rows, columns, pairs=False), _banded(plan.mask, rows, columns)
    rows_RN, columns_RM = (_owners(side, device) for side in (rows, columns))
    work = [rows_RN @ (banded_NM & ~x_NM).float() @ columns_RM.mT for x_NM in (verdicts.hidden_NM, verdicts.softly_NM)]
    return (torch.stack(work) > 0).to(torch.uint8)


def _banded(band: Band, rows: Side, columns: Side) -> Tensor:
    """Where some query of a block might see some key of another, for the band."""
    (i0_N1, i1_N1), (j0_M, j1_M) = (end.unsqueeze(1) for end in rows.ends), columns.ends
    seen_NM = torch.ones((len(i0_N1), len(j0_M)), dtype=torch.bool, device=j0_M.device)
    seen_NM = seen_NM if band.left is None else seen_NM & (j1_M - i0_N1 >= -band.left)
    return seen_NM if band.right is None else seen_NM & (j0_M - i1_N1 <= band.right)


def _owners(side: Side, device: torch.device) -> Tensor:
    """1 where a rank holds a block."""
    counts = torch.tensor(side.counts, device=device)
    owner_N = torch.arange(len(counts), device=device).repeat_interleave(counts)
    return (owner_N == torch.arange(len(counts), device=device).unsqueeze(1)).float()


def _last(plan: Plan, work_RR: list[list[int]]) -> int:
    """How many steps there are up to the last one in which any rank has work."""
    ranks = range(plan.world)
    hops = [hop for hop in ranks if any(work_RR[rank][plan.source(rank, hop)] for rank in ranks)]
    return min(max(hops, default=0) + 1, count_steps(plan))
