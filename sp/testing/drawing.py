"""Drawing inputs like an example: same dtype, another length, values from the example's own, so that ids stay ids."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def draw(example: Tensor, lengths: Mapping[int, int], generator: torch.Generator | None = None) -> Tensor:
    """A tensor whose dims have these `lengths` (the others: the example's), its elements drawn from the example's.

    Floating ones are moved by up to a thousandth, so that no two are alike.  generator: on the CPU, as the example."""
    shape = [lengths.get(dim, size) for dim, size in enumerate(example.shape)]
    if not example.numel():
        return example.new_zeros(shape)
    count = int(torch.Size(shape).numel())
    drawn = example.flatten()[torch.randint(example.numel(), (count,), generator=generator)].reshape(shape)
    if not example.is_floating_point():
        return drawn
    return drawn * (1 + 1e-3 * torch.rand(shape, generator=generator, dtype=drawn.dtype))
