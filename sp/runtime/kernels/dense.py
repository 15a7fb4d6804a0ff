"""Attention written out: the definition of correct.  Any device, any dtype, any band, any score, any head sizes.

B batch · H query heads · G key/value heads · N = H/G queries per key head · R query rows of one tile
C its key columns · D head size · E value head size · M = N·R: queries stacked by key head, so K and V stay as they are

A tile whose scores would take too much memory is computed in blocks of rows, one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sp.plan import Tile
from sp.runtime.kernels import blockwise
from sp.runtime.kernels.bands import hidden
from sp.runtime.kernels.blockwise import Gradients, Results
from sp.runtime.scores import TileScore


def cut(tile: Tile, device: str) -> tuple[Tile, ...]:
    """Every tile can be computed as it is."""
    del device
    return (tile,)


def check(q_BHSD: Tensor, k_BGTD: Tensor, v_BGTE: Tensor) -> None:
    """Everything is supported."""


def forward(
    q_BHRD: Tensor, k_BGCD: Tensor, v_BGCE: Tensor, tile: Tile, scale: float, score: TileScore | None
) -> Results:
    """The attention of one tile's rows to its columns, and the log of each row's sum of exponentials.

    q, k, v: the rows and columns of `tile` only.  Returns out_BHRE and lse_BHR in the dtype of the arithmetic: float32,
    or float64 for float64.  A row that sees nothing gets 0 and -inf, one that sees a score of +inf nan."""
    parts = blockwise.fitting(tile, q_BHRD)
    return blockwise.forward(_forward, parts, q_BHRD, k_BGCD, v_BGCE, tile, scale, score)


def backward(
    grad_BHRE: Tensor,
    q_BHRD: Tensor,
    k_BGCD: Tensor,
    v_BGCE: Tensor,
    out_BHRE: Tensor,
    lse_BHR: Tensor,
    tile: Tile,
    scale: float,
    score: TileScore | None,
    totals: list[Tensor],
) -> Gradients:
    """This tile's part of the gradients of q, k and v; those of the score's leaves are added to `totals`.

    `out` and `lse` are those of whole rows, over all tiles: with them the parts of all tiles add up to the gradients
    (Dao et al. 2022, arXiv 2205.14135, appendix B.2).  Returned in the dtype of the arithmetic, as in `forward`."""
    operands = (grad_BHRE, q_BHRD, k_BGCD, v_BGCE, out_BHRE, lse_BHR)
    return blockwise.backward(_backward, blockwise.fitting(tile, q_BHRD), *operands, tile, scale, score, totals)


def _forward(
    q_BHRD: Tensor, k_BGCD: Tensor, v_BGCE: Tensor, tile: Tile, scale: float, score: TileScore | None
) -> Results:
    groups, rows = k_BGCD.shape[1], q_BHRD.shape[2]
    q_BGMD, k_BGCD, v_BGCE = _stack(q_BHRD, groups), _wide(k_BGCD), _wide(v_BGCE)
    scores_BGMC = _seen(_products(q_BGMD, k_BGCD, scale), tile, score)
    lse_BGM = scores_BGMC.logsumexp(-1)
    lse_BGM.masked_fill_(lse_BGM == torch.inf, torch.nan)  # inf - inf: all weights of the row are nan, as in a softmax
    out_BGME = _weights(scores_BGMC, lse_BGM) @ v_BGCE
    return _unstack(out_BGME, rows), _unstack(lse_BGM.unsqueeze(-1), rows).squeeze(-1)


def _backward(
    grad_BHRE: Tensor,
    q_BHRD: Tensor,
    k_BGCD: Tensor,
    v_BGCE: Tensor,
    out_BHRE: Tensor,
    lse_BHR: Tensor,
    tile: Tile,
    scale: float,
    score: TileScore | None,
    totals: list[Tensor],
) -> Gradients:
    groups, rows = k_BGCD.shape[1], q_BHRD.shape[2]
    q_BGMD, grad_BGME, out_BGME = (_stack(x, groups) for x in (q_BHRD, grad_BHRE, out_BHRE))
    lse_BGM, k_BGCD, v_BGCE = _stack(lse_BHR.unsqueeze(-1), groups).squeeze(-1), _wide(k_BGCD), _wide(v_BGCE)
    products_BGMC = _products(q_BGMD, k_BGCD, scale)
    weights_BGMC = _weights(_seen(products_BGMC, tile, score), lse_BGM)
    delta_BGM1 = (grad_BGME * out_BGME).sum(-1, keepdim=True)
    dv_BGCE = weights_BGMC.mT @ grad_BGME
    slope_BGMC = (grad_BGME @ v_BGCE.mT).sub_(delta_BGM1).mul_(weights_BGMC)
    if score is not None:
        slope_BHRC = score.gradient(_unstack(products_BGMC, rows), _unstack(slope_BGMC, rows), totals)
        slope_BGMC = slope_BHRC.unflatten(1, (groups, -1)).flatten(2, 3)
    slope_BGMC = slope_BGMC * scale
    return _unstack(slope_BGMC @ k_BGCD, rows), slope_BGMC.mT @ q_BGMD, dv_BGCE


def _products(q_BGMD: Tensor, k_BGCD: Tensor, scale: float) -> Tensor:
    return (q_BGMD @ k_BGCD.mT).mul_(scale)


def _seen(products_BGMC: Tensor, tile: Tile, score: TileScore | None) -> Tensor:
    """The scores that softmax sees: -inf where a query must not see the key.  Without a score, in place."""
    scores_BHRC = _unstack(products_BGMC, tile.q1 - tile.q0)
    if score is not None:
        scores_BHRC = score.apply(scores_BHRC).clone()  # its result may share its memory
    hidden_RC = hidden(tile, products_BGMC.device)
    if hidden_RC is not None:
        scores_BHRC.masked_fill_(hidden_RC, -torch.inf)
    return scores_BHRC.unflatten(1, (products_BGMC.shape[1], -1)).flatten(2, 3)


def _weights(scores_BGMC: Tensor, lse_BGM: Tensor) -> Tensor:
    """The softmax, given its denominators.  0 in rows that see nothing, where -inf - -inf would be nan."""
    finite_BGM = lse_BGM.masked_fill(lse_BGM == -torch.inf, 0)
    return (scores_BGMC - finite_BGM.unsqueeze(-1)).exp_()


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _stack(x_BHRD: Tensor, groups: int) -> Tensor:
    """BHRD -> BGMD, in the dtype of the arithmetic: the query heads that share a key head become rows."""
    return _wide(x_BHRD).unflatten(1, (groups, -1)).flatten(2, 3)


def _unstack(x_BGMD: Tensor, rows: int) -> Tensor:
    """BGMD -> BHRD, the inverse of `_stack`; a view of what is contiguous."""
    return x_BGMD.unflatten(2, (-1, rows)).flatten(1, 2)
