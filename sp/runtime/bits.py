"""Numbers that travel beside narrower ones: their bits, read as several of these."""

from __future__ import annotations

import torch
from torch import Tensor


def as_bits(lse_BHS: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, H, S, W], W numbers of `dtype` for each."""
    return lse_BHS.contiguous().unsqueeze(-1).view(dtype)


def of_bits(bits_BHSW: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse: lse_BHS, contiguous."""
    return bits_BHSW.contiguous().view(dtype).squeeze(-1)
