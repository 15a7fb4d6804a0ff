"""Several tensors over the tokens of one rank, in one buffer that travels whole.

B batch · H heads · T tokens · W the size of any last dim
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """The parts are [B, H, T, W], laid out [B, T, H, W] in `flat`, one after the other."""

    flat: Tensor
    parts: tuple[Tensor, ...]

    @staticmethod
    def over(flat: Tensor, like: Sequence[Tensor], length: int) -> Block:
        """`flat`, read as a block for `length` tokens, its parts otherwise shaped like the given ones."""
        shapes = [(x.shape[0], length, x.shape[1], x.shape[3]) for x in like]
        flats = flat.split([Block.size([x], length) for x in like])
        return Block(flat, tuple(x.view(shape).transpose(1, 2) for x, shape in zip(flats, shapes, strict=True)))

    @staticmethod
    def empty(like: Sequence[Tensor], length: int, dtype: torch.dtype) -> Block:
        """An uninitialised block of its own buffer."""
        return Block.over(like[0].new_empty(Block.size(like, length), dtype=dtype), like, length)

    @staticmethod
    def size(like: Sequence[Tensor], length: int) -> int:
        """How many numbers `length` tokens take."""
        return sum(x.shape[0] * length * x.shape[1] * x.shape[3] for x in like)

    def filled(self, parts: Sequence[Tensor]) -> Block:
        """This block, with copies of the given parts."""
        for part, x in zip(self.parts, parts, strict=True):
            part.copy_(x)
        return self
