"""Rows whose scores are all -inf or nan, of which FlashAttention on CPU says 0: put right.

torch's operator returns out 0 and logsumexp 0 for a row in which it finds no maximum above -inf.  That is a row that
sees nothing; but also one whose queries or keys make every score of this piece -inf, and, where a piece has few keys,
one whose scores are nan (its maximum passes over nan).  To a merge a logsumexp of 0 is a key like any other: it would
take weight from the other pieces, and nan would be lost.  A row of which both are exactly 0 is rare, so the dense
kernel computes it once more: -inf or nan where it must be, and the same where the row was honest.

B batch · H query heads · R query rows of one piece · E value head size
"""

from __future__ import annotations

import torch

from sp.plan import Tile
from sp.runtime.kernels import blockwise, dense
from sp.runtime.kernels.blockwise import Results
from sp.runtime.scores import TileScore
from sp.tile import within


def put_right(
    found: Results,
    q_BHRD: torch.Tensor,
    k_BGCD: torch.Tensor,
    v_BGCE: torch.Tensor,
    tile: Tile,
    scale: float,
    score: TileScore | None,
) -> Results:
    """What the operator has found for `tile`, rows with an out and a logsumexp of 0 computed by the dense kernel."""
    out_BHRE, lse_BHR = found
    blank_BHR = lse_BHR == 0
    if not blank_BHR.any():
        return found
    blank_BHR &= (out_BHRE == 0).all(-1)
    rows = blank_BHR.any(0).any(0).nonzero().flatten().tolist()
    if not rows:
        return found
    part = within(tile, tile.q0 + rows[0], tile.q0 + rows[-1] + 1, tile.k0, tile.k1)
    assert part is not None, f"rows of the trimmed {tile} see nothing"
    right_BHRE, right_BHR = blockwise.forward(dense.forward, (part,), q_BHRD, k_BGCD, v_BGCE, tile, scale, score)
    out_BHRE = torch.where(blank_BHR.unsqueeze(-1), right_BHRE.to(out_BHRE.dtype), out_BHRE)
    return out_BHRE, torch.where(blank_BHR, right_BHR.to(lse_BHR.dtype), lse_BHR)
