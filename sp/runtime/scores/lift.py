"""Lifting: queries from which a mask hides all keys by large finite numbers see them all alike, and exactly.

    scores of one query   s + (-1e38, -1e38, -1e38)   softmax: a third each
    lifted                s + (-1e38, -1e38, -1e38) + 1e38

A softmax does not change when all scores of a query do, and its sums of exponentials can be merged over tiles only
while they are not lost beside 1e38.  What is taken off is the query's greatest bias, over all keys; first it is added,
since beside it the scores themselves may be lost, in the original as here.

B batch · H query heads · S local queries · R some of them · T all keys · C some of them
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sp.plan import Plan
from sp.runtime.scores.tile import TileScore
from sp.score import HIDDEN_BELOW, Score

_ROWS, _COLUMNS = 256, 4096


def find_lift(score: Score, leaves: Sequence[Tensor], plan: Plan, rows_S: Tensor, sees_BHS1: Tensor) -> Tensor | None:
    """What is taken off the scores of each local query, 0 off most of them: float64 [B or 1, H or 1, S, 1], or None.

    rows_S: the positions of the queries.  sees: which of them surely see some key."""
    doubtful = (~sees_BHS1).flatten(0, 1).any(0).flatten().nonzero().flatten()
    tops = [_greatest(score, leaves, plan, rows_S[some]) for some in doubtful.split(_ROWS)]
    if not tops:
        return None
    top_BHR1 = torch.cat(tops, dim=2)
    lost = (top_BHR1 < HIDDEN_BELOW / 4) & top_BHR1.isfinite()
    if not bool(lost.any()):
        return None
    lift_BHS1 = top_BHR1.new_zeros((*top_BHR1.shape[:2], len(rows_S), 1))
    return lift_BHS1.index_copy(2, doubtful, torch.where(lost, top_BHR1, 0.0))


def _greatest(score: Score, leaves: Sequence[Tensor], plan: Plan, rows_R: Tensor) -> Tensor:
    """The greatest of what the scores of each query are when `s` is 0."""
    tops: list[Tensor] = []
    for columns_C in torch.arange(plan.keys, device=rows_R.device).split(_COLUMNS):
        tile = TileScore(score, tuple(leaves), rows_R, columns_C)
        zeros_11RC = torch.zeros((1, 1, len(rows_R), len(columns_C)), dtype=torch.float64, device=rows_R.device)
        new_BHRC = tile.applied(zeros_11RC)
        offset_RC = columns_C - rows_R.unsqueeze(1)
        for hidden_RC in _outside(plan, offset_RC):
            new_BHRC = new_BHRC.masked_fill(hidden_RC, -torch.inf)
        tops.append(new_BHRC.amax(-1, keepdim=True))
    return torch.stack(tops).amax(0)


def _outside(plan: Plan, offset_RC: Tensor) -> list[Tensor]:
    left, right = plan.mask.left, plan.mask.right
    below = [] if left is None else [offset_RC < -left]
    return below if right is None else [*below, offset_RC > right]
