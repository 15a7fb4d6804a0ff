"""Which kernel computes an attention best, and what it does to the operands.  Fake tensors will do."""

from __future__ import annotations

from torch import Tensor

from sp.errors import InputError, StrategyError
from sp.runtime.kernels import flash
from sp.runtime.kernels.operators import common_size


def choose_kernel(q: Tensor, k: Tensor, v: Tensor) -> str:
    """`flash` where torch's FlashAttention takes these operands, otherwise `dense`.

    Filled up with zeros too: at 2048 tokens that took from 0.2 (heads of 24 and 16) to 0.9 times (64 and 512) as long
    as the dense kernel, on CPU."""
    try:
        flash.check(q, k, v)
    except (InputError, StrategyError):
        return "dense"
    return "flash"


def filling(q: Tensor, v: Tensor) -> str:
    """What FlashAttention, which knows one head size, fills up with zeros; "" for nothing."""
    size, value_size = q.shape[3], v.shape[3]
    common = common_size(q.device.type, size, value_size)
    if size == value_size < common:
        return f"queries, keys and values of head size {size} filled up to {common} for flash"
    sizes = {"queries and keys": size, "values": value_size}
    smaller = [f"{what} of head size {size}" for what, size in sizes.items() if size < common]
    return f"{' and '.join(smaller)} filled up to {common} for flash" if smaller else ""
