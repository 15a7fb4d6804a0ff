"""torch's own FlashAttention, one piece of a tile at a time, on CPU and CUDA.

B batch · H query heads · G key/value heads · S query rows of one piece · T its key columns · D head size

The two devices differ in their operators and in what these take.  The device of `q` decides; what its operator cannot
do is refused by `check`, never computed some other way.  Traps, each held off here:

* a length of 0 kills the process on CPU, query heads that key heads do not divide give garbage;
* a last dim whose stride is not 1 is silently wrong on CPU;
* with unequal lengths `is_causal` means something else on each device: only squares are causal here;
* logsumexp is laid out [B, S, H] on CPU, and CUDA's backward reads [B, H, S] whatever the strides say.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sp.errors import InputError, StrategyError
from sp.plan import Tile
from sp.runtime.kernels import dense
from sp.runtime.kernels.pieces import cut as cut
from sp.runtime.kernels.pieces import shape

_CPU_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_CUDA_DTYPES = (torch.bfloat16, torch.float16)
_DENSE = "ask for the kernel 'dense', which takes everything"


def check(q_BHSD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor) -> None:
    """InputError or StrategyError when the operator of q's device cannot compute this attention.

    Meta tensors, which stand for a device not known yet, pass if any device's operator would do."""
    device, size = q_BHSD.device.type, q_BHSD.shape[3]
    if device not in ("cpu", "cuda", "meta"):
        raise StrategyError(f"there is no flash attention on {device}", needed="cpu or cuda", remedy=_DENSE)
    if v_BGTD.shape[3] != size:
        found = f"flash attention got values of head size {v_BGTD.shape[3]} and queries of {size}"
        raise InputError(found, needed="one head size", remedy=_DENSE)
    dtypes = _CUDA_DTYPES if device == "cuda" else _CPU_DTYPES
    if q_BHSD.dtype not in dtypes:
        needed = "one of: " + ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        remedy = f"run under torch.autocast, or {_DENSE}"
        raise InputError(f"flash attention on {device} got {q_BHSD.dtype}", needed=needed, remedy=remedy)
    if device == "cuda" and (size % 8 or size > 256):
        needed = "a multiple of 8 up to 256"
        raise InputError(f"flash attention on cuda got head size {size}", needed=needed, remedy=_DENSE)


def forward(q_BHSD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, tile: Tile, scale: float) -> tuple[Tensor, Tensor]:
    """out_BHSD in q's dtype (float32 from a narrow band) and lse_BHS in float32 (float64 for float64) of one piece."""
    kind = shape(tile)
    if kind == "band":
        return dense.forward(q_BHSD, k_BGTD, v_BGTD, tile, scale)
    q_BHSD, k_BGTD, v_BGTD = _operands(kind == "anticausal", q_BHSD, k_BGTD, v_BGTD)
    run = _forward_cpu if q_BHSD.device.type == "cpu" else _forward_cuda
    out_BHSD, lse_BHS = run(q_BHSD, k_BGTD, v_BGTD, kind != "full", scale)
    return (out_BHSD.flip(2), lse_BHS.flip(2)) if kind == "anticausal" else (out_BHSD, lse_BHS)


def backward(
    grad_BHSD: Tensor,
    q_BHSD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    out_BHSD: Tensor,
    lse_BHS: Tensor,
    tile: Tile,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """This piece's part of the gradients, in q's dtype (float32 from a narrow band), given whole rows' `out`, `lse`."""
    kind = shape(tile)
    if kind == "band":
        return dense.backward(grad_BHSD, q_BHSD, k_BGTD, v_BGTD, out_BHSD, lse_BHS, tile, scale)
    flip, causal = kind == "anticausal", kind != "full"
    operands = _operands(flip, grad_BHSD, q_BHSD, k_BGTD, v_BGTD, out_BHSD)
    lse_BHS = (lse_BHS.flip(2) if flip else lse_BHS).contiguous()
    run = _backward_cpu if q_BHSD.device.type == "cpu" else _backward_cuda
    dq_BHSD, dk_BGTD, dv_BGTD = run(operands, lse_BHS, causal, scale)
    return (dq_BHSD.flip(2), dk_BGTD.flip(2), dv_BGTD.flip(2)) if flip else (dq_BHSD, dk_BGTD, dv_BGTD)


def _operands(flip: bool, *tensors: Tensor) -> list[Tensor]:
    """Operands as the operators need them.  Reversing both sequences turns y >= x into y <= x."""
    assert all(x.shape[2] > 0 for x in tensors), "a piece has rows and columns"
    turned = (x.flip(2) if flip else x for x in tensors)
    return [x if x.stride(3) == 1 else x.contiguous() for x in turned]


def _forward_cpu(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, lse = run(q, k, v, 0.0, causal, scale=scale)
    return out, lse


def _forward_cuda(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    run = torch.ops.aten._scaled_dot_product_flash_attention.default
    out, lse, *_ = run(q, k, v, 0.0, causal, False, scale=scale)
    return out, lse.narrow(2, 0, q.shape[2])  # some versions round the length up


def _backward_cpu(operands: list[Tensor], lse: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return run(*operands, lse, 0.0, causal, scale=scale)


def _backward_cuda(operands: list[Tensor], lse: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    run = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    _, q, k, *_ = operands
    # The random state of dropout is read only when there is dropout, so any tensors of its type do.
    seed, offset = (torch.zeros(size, dtype=torch.uint64, device=q.device) for size in ((2,), ()))
    lengths = (q.shape[2], k.shape[2])
    return run(*operands, lse, None, None, *lengths, 0.0, causal, seed, offset, scale=scale)
