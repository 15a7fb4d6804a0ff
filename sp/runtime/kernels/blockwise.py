"""A tile in blocks of rows, one after the other, so that no tensor over queries and keys takes much memory.

B batch · H query heads · G key/value heads · R rows, C columns of the tile · D, E head sizes of k and v
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sp.plan import Tile
from sp.runtime.kernels.pieces import blocks
from sp.runtime.merge import accumulation_dtype
from sp.runtime.scores import TileScore

Results = tuple[Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]
Forward = Callable[[Tensor, Tensor, Tensor, Tile, float, TileScore | None], Results]
Backward = Callable[
    [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tile, float, TileScore | None, list[Tensor]], Gradients
]

# The largest tensor over queries, keys and heads that a kernel makes.
MOST_BYTES = 64 << 20
_POSITIONS = 8  # bytes for each query and key of what a score is computed from


def fitting(tile: Tile, q_BHRD: Tensor, most_rows: int | None = None) -> tuple[Tile, ...]:
    """`tile` in blocks of at most `most_rows` rows, such that a score for each pair and head fits into MOST_BYTES.

    Rows that see nothing are in no block, columns that no row of a block sees are not in that block."""
    heads = q_BHRD.shape[0] * q_BHRD.shape[1]
    pair = max(heads * accumulation_dtype(q_BHRD.dtype).itemsize, _POSITIONS)
    rows = max(1, MOST_BYTES // ((tile.k1 - tile.k0) * pair))
    return blocks(tile, rows if most_rows is None else min(rows, most_rows))


def forward(
    run: Forward,
    parts: tuple[Tile, ...],
    q_BHRD: Tensor,
    k_BGCD: Tensor,
    v_BGCE: Tensor,
    tile: Tile,
    scale: float,
    score: TileScore | None,
) -> Results:
    """out_BHRE and lse_BHR of `tile`, whose parts `run` computes.  Rows in no part get 0 and -inf."""
    if parts == (tile,):
        return run(q_BHRD, k_BGCD, v_BGCE, tile, scale, score)
    shape, dtype = q_BHRD.shape[:3], accumulation_dtype(q_BHRD.dtype)
    out_BHRE = q_BHRD.new_zeros((*shape, v_BGCE.shape[3]), dtype=dtype)
    lse_BHR = q_BHRD.new_full(shape, -torch.inf, dtype=dtype)
    for part in parts:
        k, v = _columns(tile, part, k_BGCD, v_BGCE)
        q, out, lse = _rows(tile, part, q_BHRD, out_BHRE, lse_BHR)
        found_out, found_lse = run(q, k, v, part, scale, _score(tile, part, score))
        out.copy_(found_out)
        lse.copy_(found_lse)
    return out_BHRE, lse_BHR


def backward(
    run: Backward,
    parts: tuple[Tile, ...],
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
    """dq, dk, dv of `tile`, summed over its parts."""
    if parts == (tile,):
        return run(grad_BHRE, q_BHRD, k_BGCD, v_BGCE, out_BHRE, lse_BHR, tile, scale, score, totals)
    dtype = accumulation_dtype(q_BHRD.dtype)
    dq_BHRD, dk_BGCD, dv_BGCE = (x.new_zeros(x.shape, dtype=dtype) for x in (q_BHRD, k_BGCD, v_BGCE))
    for part in parts:
        grad, q, out, lse, dq = _rows(tile, part, grad_BHRE, q_BHRD, out_BHRE, lse_BHR, dq_BHRD)
        k, v, dk, dv = _columns(tile, part, k_BGCD, v_BGCE, dk_BGCD, dv_BGCE)
        found = run(grad, q, k, v, out, lse, part, scale, _score(tile, part, score), totals)
        for place, more in zip((dq, dk, dv), found, strict=True):
            place.add_(more)
    return dq_BHRD, dk_BGCD, dv_BGCE


def _rows(tile: Tile, part: Tile, *tensors: Tensor) -> list[Tensor]:
    return [x.narrow(2, part.q0 - tile.q0, part.q1 - part.q0) for x in tensors]


def _columns(tile: Tile, part: Tile, *tensors: Tensor) -> list[Tensor]:
    return [x.narrow(2, part.k0 - tile.k0, part.k1 - part.k0) for x in tensors]


def _score(tile: Tile, part: Tile, score: TileScore | None) -> TileScore | None:
    if score is None:
        return None
    return score.part(part.q0 - tile.q0, part.q1 - tile.q0, part.k0 - tile.k0, part.k1 - tile.k0)
