"""Checksums: two sums over the bits of a tensor, one of them weighted by place, in little memory."""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 1 << 20  # elements that are weighed at once
_WIDTH = 8  # bytes of what is summed
_FACTORS = (0xFF51AFD7ED558CCD - 2**64, 0xC4CEB9FE1A85EC53 - 2**64)  # odd, as int64
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def sums(tensor: Tensor) -> tuple[int, int]:
    """Of all bits, modulo 2^64.  They differ where contents do, but for one chance in very many, whatever the strides,
    the offset and the device."""
    flat = _bits(tensor)
    total = weighted = torch.zeros((), dtype=torch.int64, device=flat.device)
    places = torch.arange(1, min(_CHUNK, flat.numel()) + 1, device=flat.device)
    for number, chunk in enumerate(flat.split(_CHUNK)):
        wide = _mixed(chunk.to(torch.int64))
        total = total + wide.sum()
        weighted = weighted + (wide * (places[: len(wide)] + number * _CHUNK)).sum()
    return int(total), int(weighted)


def _mixed(x: Tensor) -> Tensor:
    """One number to one number, so that sums of them are not sums of bits: of two signs that change, the changes would
    cancel modulo 2^64.  The step of MurmurHash3 (Appleby 2011), twice."""
    for factor in _FACTORS:
        x = x * factor
        x = x ^ (x >> 32)
    return x


def _bits(tensor: Tensor) -> Tensor:
    """As integers, of 8 bytes where their number allows it."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous().as_strided((tensor.numel(),), (1,))
    if dense.nbytes % _WIDTH:
        return dense.view(_BITS[dense.dtype.itemsize])
    aligned = dense.storage_offset() * dense.dtype.itemsize % _WIDTH == 0
    return (dense if aligned else dense.clone()).view(torch.int64)
