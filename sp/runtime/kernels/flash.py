"""torch's own FlashAttention, one piece of a tile at a time: alone, or on CPU under a mask.

B batch · H query heads · G key/value heads · R query rows, C key columns of one piece · D, E head sizes of k and v

    full, causal, anticausal           FlashAttention alone
    a band (CUDA)                      FlashAttention with a window: every tile is one call
    a band, a score that adds (CPU)    FlashAttention under a mask that is added, block of rows by block of rows
    any other score; a score (CUDA)    the dense kernel

What the operator of q's device cannot do at all is refused by `check`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sp.errors import InputError, StrategyError
from sp.plan import Tile
from sp.runtime.kernels import blockwise, dense, pieces
from sp.runtime.kernels.bands import added, hidden
from sp.runtime.kernels.blank import put_right
from sp.runtime.kernels.blockwise import Gradients, Results
from sp.runtime.kernels.operators import (
    CAUSAL,
    FULL,
    MOST_ON_CUDA,
    Window,
    common_size,
    run_backward,
    run_forward,
)
from sp.runtime.scores import TileScore

_CPU_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_CUDA_DTYPES = (torch.bfloat16, torch.float16)
_DENSE = "ask for the kernel 'dense', which takes everything"
_NEVER = 1e30  # as lse: exp(score - lse) is 0


def check(q_BHRD: Tensor, k_BGCD: Tensor, v_BGCE: Tensor) -> None:
    """InputError or StrategyError when the operator of q's device cannot compute this attention.

    Meta tensors, which stand for a device not known yet, pass if any device's operator would do."""
    device = q_BHRD.device.type
    if device not in ("cpu", "cuda", "meta"):
        raise StrategyError(f"there is no flash attention on {device}", needed="cpu or cuda", remedy=_DENSE)
    dtypes = _CUDA_DTYPES if device == "cuda" else _CPU_DTYPES
    if q_BHRD.dtype not in dtypes:
        needed = "one of: " + ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        remedy = f"run under torch.autocast, or {_DENSE}"
        raise InputError(f"flash attention on {device} got {q_BHRD.dtype}", needed=needed, remedy=remedy)
    size = common_size(device, q_BHRD.shape[3], v_BGCE.shape[3])
    if device == "cuda" and size > MOST_ON_CUDA:
        found = f"flash attention on cuda got head size {max(q_BHRD.shape[3], v_BGCE.shape[3])}"
        raise InputError(found, needed=f"at most {MOST_ON_CUDA}", remedy=_DENSE)


def cut(tile: Tile, device: str) -> tuple[Tile, ...]:
    """Pieces as FlashAttention of `device` computes them best."""
    return (tile,) if device == "cuda" else pieces.cut(tile)


def forward(
    q_BHRD: Tensor, k_BGCD: Tensor, v_BGCE: Tensor, tile: Tile, scale: float, score: TileScore | None
) -> Results:
    """out_BHRE in q's dtype or float32, and lse_BHR in float32 (float64 for float64), of one piece.

    A row that sees nothing, or nothing but scores of -inf, gets 0 and -inf."""
    if score is None and q_BHRD.device.type == "cuda":
        return run_forward(q_BHRD, k_BGCD, v_BGCE, window(tile), scale)
    operands = (q_BHRD, k_BGCD, v_BGCE)
    if _is_alone(tile, score):
        return put_right(_forward_alone(*operands, tile, scale), *operands, tile, scale, score)
    if not _takes_mask(q_BHRD, score):
        return dense.forward(*operands, tile, scale, score)
    parts = blockwise.fitting(tile, q_BHRD, _most_rows(tile))
    found = blockwise.forward(_forward_masked, parts, *operands, tile, scale, score)
    return put_right(found, *operands, tile, scale, score)


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
    """This piece's part of the gradients, in q's dtype or float32, given whole rows' `out` and `lse`.

    Those of the score's leaves are added to `totals`."""
    operands = (grad_BHRE, q_BHRD, k_BGCD, v_BGCE, out_BHRE, lse_BHR)
    if score is None and q_BHRD.device.type == "cuda":
        return run_backward(*operands, window(tile), scale)
    if _is_alone(tile, score):
        return _backward_alone(*operands[:-1], _without_nothing(lse_BHR), tile, scale)
    if not _takes_mask(q_BHRD, score):
        return dense.backward(*operands, tile, scale, score, totals)
    parts = blockwise.fitting(tile, q_BHRD, _most_rows(tile))
    return blockwise.backward(_backward_masked, parts, *operands, tile, scale, score, totals)


def window(tile: Tile) -> Window:
    """The band of a trimmed tile, as CUDA's operator counts it: from the diagonal that ends in the last row and column.

    Trimmed, every row and column of a tile has a visible pair, and so the last of both is visible: none is negative."""
    corner = (tile.k1 - tile.k0) - (tile.q1 - tile.q0)
    left = -1 if tile.lower is None else corner - tile.lower
    right = -1 if tile.upper is None else tile.upper - corner
    assert tile.lower is None or left >= 0, f"the last row of {tile} does not see its last column"
    assert tile.upper is None or right >= 0, f"the last row of {tile} does not see its last column"
    return Window(left, right)


def _is_alone(tile: Tile, score: TileScore | None) -> bool:
    """On CPU."""
    return score is None and pieces.shape(tile) != "band"


def _takes_mask(q_BHRD: Tensor, score: TileScore | None) -> bool:
    """A mask is of the dtype of q: a bias in a wider one would be rounded, and scores of 1000 with it."""
    if q_BHRD.device.type != "cpu" or score is None:
        return q_BHRD.device.type == "cpu"
    return score.form == "added" and score.fits(q_BHRD.dtype)


def _most_rows(tile: Tile) -> int | None:
    """A band is cut into blocks, so that little of what it hides is computed."""
    return None if tile.kind == "full" else pieces.height(tile.k1 - tile.k0)


def _forward_alone(q_BHRD: Tensor, k_BGCD: Tensor, v_BGCE: Tensor, tile: Tile, scale: float) -> Results:
    kind = pieces.shape(tile)
    if kind != "anticausal":
        return run_forward(q_BHRD, k_BGCD, v_BGCE, CAUSAL if kind == "causal" else FULL, scale)
    q_BHRD, k_BGCD, v_BGCE = _turned(q_BHRD, k_BGCD, v_BGCE)
    out_BHRE, lse_BHR = run_forward(q_BHRD, k_BGCD, v_BGCE, CAUSAL, scale)
    return out_BHRE.flip(2), lse_BHR.flip(2)


def _backward_alone(
    grad_BHRE: Tensor,
    q_BHRD: Tensor,
    k_BGCD: Tensor,
    v_BGCE: Tensor,
    out_BHRE: Tensor,
    lse_BHR: Tensor,
    tile: Tile,
    scale: float,
) -> Gradients:
    kind, operands = pieces.shape(tile), (grad_BHRE, q_BHRD, k_BGCD, v_BGCE, out_BHRE, lse_BHR)
    if kind != "anticausal":
        return run_backward(*operands, CAUSAL if kind == "causal" else FULL, scale)
    grad_BHRE, q_BHRD, k_BGCD, v_BGCE, out_BHRE, lse_BHR = _turned(*operands)
    dq_BHRD, dk_BGCD, dv_BGCE = run_backward(grad_BHRE, q_BHRD, k_BGCD, v_BGCE, out_BHRE, lse_BHR, CAUSAL, scale)
    return dq_BHRD.flip(2), dk_BGCD.flip(2), dv_BGCE.flip(2)


def _turned(*tensors: Tensor) -> list[Tensor]:
    """Reversing both sequences turns y >= x into y <= x."""
    return [x.flip(2) for x in tensors]


def _forward_masked(
    q_BHRD: Tensor, k_BGCD: Tensor, v_BGCE: Tensor, tile: Tile, scale: float, score: TileScore | None
) -> Results:
    if _is_alone(tile, score):  # a block of a band may be full
        return _forward_alone(q_BHRD, k_BGCD, v_BGCE, tile, scale)
    if score is None:  # each row of a tile sees something
        return run_forward(q_BHRD, k_BGCD, v_BGCE, FULL, scale, _mask(tile, None, q_BHRD, q_BHRD.dtype))
    mask = _mask(tile, score, q_BHRD, q_BHRD.dtype)
    out_BHRE, lse_BHR = run_forward(q_BHRD, k_BGCD, v_BGCE, FULL, scale, mask)
    return out_BHRE, lse_BHR.masked_fill_(mask.amax(-1) == -torch.inf, -torch.inf)


def _backward_masked(
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
    operands = (grad_BHRE, q_BHRD, k_BGCD, v_BGCE, out_BHRE)
    if _is_alone(tile, score):
        return _backward_alone(*operands, _without_nothing(lse_BHR), tile, scale)
    mask = _mask(tile, score, q_BHRD, q_BHRD.dtype)
    return run_backward(*operands, _without_nothing(lse_BHR), FULL, scale, mask)


def _without_nothing(lse_BHR: Tensor) -> Tensor:
    """Rows whose scores are all -inf have weights of 0, where -inf - -inf would be nan."""
    return lse_BHR.masked_fill(lse_BHR == -torch.inf, _NEVER)


def _mask(tile: Tile, score: TileScore | None, q_BHRD: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of `tile`: of the score, and -inf outside of the band.  [B or 1, H or 1, R, C]"""
    if score is None:
        return added(tile, dtype, q_BHRD.device)[None, None]
    mask = score.added(dtype)
    mask = mask.expand(*mask.shape[:2], tile.q1 - tile.q0, tile.k1 - tile.k0)
    hidden_RC = hidden(tile, q_BHRD.device)
    return mask if hidden_RC is None else mask.masked_fill(hidden_RC, -torch.inf)
