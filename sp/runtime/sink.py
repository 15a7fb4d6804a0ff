"""The sink of an attention: one more key in every row's softmax, whose value is zero and which no rank holds."""

from __future__ import annotations

import torch
from torch import Tensor

from sp.runtime.merge import Accumulator
from sp.runtime.scores import BoundScore


def with_sink(total: Accumulator, score: BoundScore | None) -> Accumulator:
    """The attention of whole rows, the sink its last part."""
    sink_BHS1 = None if score is None else score.sink()
    if sink_BHS1 is not None:
        total.add_sink(sink_BHS1)
    return total


def add_sink_gradient(
    grad_BHSE: Tensor, out_BHSE: Tensor, lse_BHS: Tensor, score: BoundScore, totals: list[Tensor]
) -> None:
    """The sink takes its share of each row's softmax, and its value is zero."""
    sink_BHS1 = score.sink()
    if sink_BHS1 is not None:
        lse_BHS1 = lse_BHS.unsqueeze(-1)
        share_BHS1 = (sink_BHS1 - lse_BHS1).exp().masked_fill(lse_BHS1 == -torch.inf, 0)
        wide = lse_BHS1.dtype
        delta_BHS1 = (grad_BHSE.to(wide) * out_BHSE.to(wide)).sum(-1, keepdim=True)
        score.add_sink_gradient(totals, -share_BHS1 * delta_BHS1)
