"""Attention written out: the definition of correct.  Any device, any dtype, any band, any head sizes.

B batch · H query heads · G key/value heads · R = H/G queries per key head · S query rows of one tile
T its key columns · D head size · E value head size · M = R·S: queries stacked by key head, so K and V stay as they are
"""

from __future__ import annotations

import torch
from torch import Tensor

from sp.plan import Tile


def cut(tile: Tile) -> tuple[Tile, ...]:
    """Every tile can be computed as it is."""
    return (tile,)


def check(q_BHSD: Tensor, k_BGTD: Tensor, v_BGTE: Tensor) -> None:
    """Everything is supported."""


def forward(q_BHSD: Tensor, k_BGTD: Tensor, v_BGTE: Tensor, tile: Tile, scale: float) -> tuple[Tensor, Tensor]:
    """The attention of one tile's rows to its columns, and the log of each row's sum of exponentials.

    q, k, v: the rows and columns of `tile` only.  Returns out_BHSE and lse_BHS in the dtype of the arithmetic: float32,
    or float64 for float64.  A row that sees nothing gets 0 and -inf."""
    groups, rows = k_BGTD.shape[1], q_BHSD.shape[2]
    q_BGMD, k_BGTD, v_BGTE = _stack(q_BHSD, groups), _wide(k_BGTD), _wide(v_BGTE)
    scores_BGMT = _scores(q_BGMD, k_BGTD, tile, scale)
    lse_BGM = scores_BGMT.logsumexp(-1)
    out_BGME = _weights(scores_BGMT, lse_BGM) @ v_BGTE
    return _unstack(out_BGME, rows), _unstack(lse_BGM.unsqueeze(-1), rows).squeeze(-1)


def backward(
    grad_BHSE: Tensor,
    q_BHSD: Tensor,
    k_BGTD: Tensor,
    v_BGTE: Tensor,
    out_BHSE: Tensor,
    lse_BHS: Tensor,
    tile: Tile,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """This tile's part of the gradients of q, k and v.

    `out` and `lse` are those of whole rows, over all tiles: with them the parts of all tiles add up to the gradients
    (Dao et al. 2022, arXiv 2205.14135, appendix B.2).  Returned in the dtype of the arithmetic, as in `forward`."""
    groups, rows = k_BGTD.shape[1], q_BHSD.shape[2]
    q_BGMD, grad_BGME, out_BGME = (_stack(x, groups) for x in (q_BHSD, grad_BHSE, out_BHSE))
    lse_BGM, k_BGTD, v_BGTE = _stack(lse_BHS.unsqueeze(-1), groups).squeeze(-1), _wide(k_BGTD), _wide(v_BGTE)
    weights_BGMT = _weights(_scores(q_BGMD, k_BGTD, tile, scale), lse_BGM)
    delta_BGM1 = (grad_BGME * out_BGME).sum(-1, keepdim=True)
    slope_BGMT = weights_BGMT * (grad_BGME @ v_BGTE.mT - delta_BGM1) * scale
    return _unstack(slope_BGMT @ k_BGTD, rows), slope_BGMT.mT @ q_BGMD, weights_BGMT.mT @ grad_BGME


def _scores(q_BGMD: Tensor, k_BGTD: Tensor, tile: Tile, scale: float) -> Tensor:
    """Scaled products of queries and keys, -inf where a query must not see the key."""
    scores_BGMT = (q_BGMD @ k_BGTD.mT).mul_(scale)
    if tile.kind == "full":
        return scores_BGMT
    rows, columns = tile.q1 - tile.q0, tile.k1 - tile.k0
    x_S1, y_T = (torch.arange(n, device=scores_BGMT.device) for n in (rows, columns))
    offset_ST = y_T - x_S1.unsqueeze(1)
    hidden_ST = torch.zeros_like(offset_ST, dtype=torch.bool)
    if tile.lower is not None:
        hidden_ST |= offset_ST < tile.lower
    if tile.upper is not None:
        hidden_ST |= offset_ST > tile.upper
    scores_BGMT.unflatten(2, (-1, rows)).masked_fill_(hidden_ST, -torch.inf)
    return scores_BGMT


def _weights(scores_BGMT: Tensor, lse_BGM: Tensor) -> Tensor:
    """The softmax, given its denominators.  0 in rows that see nothing, where -inf - -inf would be nan."""
    finite_BGM = lse_BGM.masked_fill(lse_BGM == -torch.inf, 0)
    return (scores_BGMT - finite_BGM.unsqueeze(-1)).exp_()


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _stack(x_BHSD: Tensor, groups: int) -> Tensor:
    """BHSD -> BGMD, in the dtype of the arithmetic: the query heads that share a key head become rows."""
    return _wide(x_BHSD).unflatten(1, (groups, -1)).flatten(2, 3)


def _unstack(x_BGMD: Tensor, rows: int) -> Tensor:
    """BGMD -> BHSD, the inverse of `_stack`."""
    return x_BGMD.unflatten(2, (-1, rows)).flatten(1, 2)
