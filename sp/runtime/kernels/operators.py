"""torch's own FlashAttention operators, one call: what they need, and what they return, on CPU and CUDA.

B batch · H query heads · G key/value heads · R query rows, C key columns of one call · D head size

The two devices differ in their operators and in what these take; the device of `q` decides.  CUDA's are
`aten::_flash_attention_forward` and `_backward`, FlashAttention 2 unless `torch.nn.attention`'s
`activate_flash_attention_impl("FA3")` or `("FA4")` has put another in their place.  They take windows, which
`scaled_dot_product_attention` does not pass on; CPU's operators take a mask instead.  Traps, each held off here:

* a length of 0 kills the process on CPU, query heads that key heads do not divide give garbage;
* a last dim whose stride is not 1 is silently wrong on CPU;
* with unequal lengths the diagonal starts in the first row and column on CPU and ends in the last ones on CUDA, as a
  window's does: only squares are causal on CPU;
* on CUDA a row that sees nothing gets +inf: a window must leave something to each row;
* logsumexp is laid out [B, R, H] on CPU, and CUDA's backward reads [B, H, R] whatever the strides say;
* all head sizes must be equal, on CUDA multiples of 8: smaller ones are filled up with zeros, which add nothing to a
  product of a query and a key, and give values of zero.  The results are cut back.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_ON_CUDA = 256


def common_size(device: str, size: int, value_size: int) -> int:
    """The head size that the operator of `device` is called with."""
    largest = max(size, value_size)
    return -(-largest // 8) * 8 if device == "cuda" else largest


class Window(NamedTuple):
    """How many keys a query sees to the left and to the right of its own, with the last query's being the last key; -1
    is as many as there are."""

    left: int
    right: int


FULL, CAUSAL = Window(-1, -1), Window(-1, 0)


def run_forward(
    q_BHRD: Tensor, k_BGCD: Tensor, v_BGCE: Tensor, window: Window, scale: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """out_BHRE in q's dtype and lse_BHR in float32 (float64 for float64).

    window: any on CUDA; on CPU FULL, or CAUSAL of a square.
    mask: added to the scores, in q's dtype, [B or 1, H or 1, R, C]; only on CPU.  A row without a key gets 0 and 0, on
    CPU so does one of scores that are all -inf, or few and nan; on CUDA one of scores that are -inf gets 0 and -inf."""
    device, value_size = _device(q_BHRD), v_BGCE.shape[3]
    assert mask is None or device == "cpu", "FlashAttention takes a mask on CPU only"
    q, k, v = _operands(common_size(device, q_BHRD.shape[3], value_size), q_BHRD, k_BGCD, v_BGCE)
    if device == "cuda":
        out, lse = _forward_cuda(q, k, v, window, scale)
    else:
        run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        out, lse = run(q, k, v, 0.0, _is_causal(window, q, k), scale=scale, **_given(mask))
    return out.narrow(3, 0, value_size), lse


def run_backward(
    grad_BHRE: Tensor,
    q_BHRD: Tensor,
    k_BGCD: Tensor,
    v_BGCE: Tensor,
    out_BHRE: Tensor,
    lse_BHR: Tensor,
    window: Window,
    scale: float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv in q's dtype.  window, mask: as in forward."""
    device, size, value_size = _device(q_BHRD), q_BHRD.shape[3], v_BGCE.shape[3]
    common = common_size(device, size, value_size)
    operands = _operands(common, grad_BHRE, q_BHRD, k_BGCD, v_BGCE, out_BHRE)
    lse_BHR = lse_BHR.contiguous()
    if device == "cuda":
        dq, dk, dv = _backward_cuda(operands, lse_BHR, window, scale)
    else:
        run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        causal = _is_causal(window, q_BHRD, k_BGCD)
        dq, dk, dv = run(*operands, lse_BHR, 0.0, causal, scale=scale, **_given(mask))
    return dq.narrow(3, 0, size), dk.narrow(3, 0, size), dv.narrow(3, 0, value_size)


def _device(x: Tensor) -> str:
    return x.device.type


def _given(mask: Tensor | None) -> dict[str, Tensor]:
    return {} if mask is None else {"attn_mask": mask}


def _operands(size: int, *tensors: Tensor) -> list[Tensor]:
    """Operands as the operators need them, of head size `size`."""
    assert all(x.shape[2] > 0 for x in tensors), "a piece has rows and columns"
    filled = (F.pad(x, (0, size - x.shape[3])) if x.shape[3] < size else x for x in tensors)
    return [x if x.stride(3) == 1 else x.contiguous() for x in filled]


def _is_causal(window: Window, q_BHRD: Tensor, k_BGCD: Tensor) -> bool:
    """On CPU."""
    assert window == FULL or (window == CAUSAL and q_BHRD.shape[2] == k_BGCD.shape[2]), f"{window} is not for CPU"
    return window == CAUSAL


def _forward_cuda(q: Tensor, k: Tensor, v: Tensor, window: Window, scale: float) -> tuple[Tensor, Tensor]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse, *_ = torch.ops.aten._flash_attention_forward.default(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, window == CAUSAL, False, scale=scale, **_sides(window)
    )
    lse = lse.narrow(2, 0, q.shape[1])  # some versions round the length up
    return out.transpose(1, 2), lse.masked_fill(lse == torch.inf, -torch.inf)  # +inf: all scores of the row are -inf


def _backward_cuda(operands: list[Tensor], lse: Tensor, window: Window, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v, out = (x.transpose(1, 2) for x in operands)
    # The random state of dropout is read only when there is dropout, so any tensors of its type do.
    seed, offset = (torch.zeros(size, dtype=torch.uint64, device=q.device) for size in ((2,), ()))
    about = (None, None, q.shape[1], k.shape[1], 0.0, window == CAUSAL, seed, offset)
    run = torch.ops.aten._flash_attention_backward.default
    dq, dk, dv = run(grad, q, k, v, out, lse, *about, scale=scale, **_sides(window))
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def _sides(window: Window) -> dict[str, int]:
    """Numbers in any case: what takes the operators' place may know -1 and not None."""
    return {"window_size_left": window.left, "window_size_right": window.right}
