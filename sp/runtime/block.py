"""Two tensors over the keys of one source rank, in one buffer that travels whole.

B batch · G key/value heads · T keys · D, E head sizes of k and v
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sp.runtime.stream import Parts, columns


@dataclass(frozen=True)
class Block:
    """Keys and values, or their gradients; laid out [B, T, G, ·] in `flat`, one after the other."""

    flat: Tensor
    k_BGTD: Tensor
    v_BGTE: Tensor

    @staticmethod
    def over(flat: Tensor, k_BGSD: Tensor, v_BGSE: Tensor, length: int) -> Block:
        """`flat`, read as a block for `length` keys, otherwise shaped like k and v."""
        k_shape, v_shape = ((x.shape[0], length, x.shape[1], x.shape[3]) for x in (k_BGSD, v_BGSE))
        sizes = [Block.size(x, length) for x in (k_BGSD, v_BGSE)]
        k_flat, v_flat = flat.split(sizes)
        return Block(flat, k_flat.view(k_shape).transpose(1, 2), v_flat.view(v_shape).transpose(1, 2))

    @staticmethod
    def empty(k_BGSD: Tensor, v_BGSE: Tensor, length: int, dtype: torch.dtype) -> Block:
        """An uninitialised block of its own buffer."""
        count = Block.size(k_BGSD, length) + Block.size(v_BGSE, length)
        return Block.over(k_BGSD.new_empty(count, dtype=dtype), k_BGSD, v_BGSE, length)

    @staticmethod
    def packed(k_BGSD: Tensor, v_BGSE: Tensor) -> Block:
        """A copy of k and v."""
        block = Block.empty(k_BGSD, v_BGSE, k_BGSD.shape[2], k_BGSD.dtype)
        block.k_BGTD.copy_(k_BGSD)
        block.v_BGTE.copy_(v_BGSE)
        return block

    def add(self, parts: Parts) -> None:
        """Add the gradients that tiles found for their keys and values."""
        for tile, dk, dv in parts:
            columns(tile, self.k_BGTD).add_(dk)
            columns(tile, self.v_BGTE).add_(dv)

    @staticmethod
    def size(x_BGSD: Tensor, length: int) -> int:
        """How many numbers `length` keys take of a tensor that is otherwise shaped like x."""
        batch, groups, _, width = x_BGSD.shape
        return batch * length * groups * width
