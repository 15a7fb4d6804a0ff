"""`sp::share`: a replicated value whose gradient all ranks compute alike; each keeps its share of it.

| op          | forward                                  | backward                     |
|-------------|------------------------------------------|------------------------------|
| `sp::share` | the very same tensor, nothing is copied  | divides by the world's size  |

Only where others sum the gradients of parameters over the ranks (`sync_gradients=False`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sp.runtime.world import find_world


class _Share(torch.autograd.Function):
    """A view forward; the gradient divided by the number of ranks backward."""

    @staticmethod
    def forward(x: Tensor, world: int) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.world = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] / ctx.world, None


def _share(x: Tensor, group: str) -> Tensor:
    """Replicated [shape] -> the same."""
    result = _Share.apply(x, find_world(group).size)
    assert isinstance(result, Tensor)
    return result


# A custom op may not return its input: composite, as `sp::replicate` is.
_library = torch.library.Library("sp", "FRAGMENT")
_library.define("share(Tensor(a) x, str group) -> Tensor(a)")
_library.impl("share", _share, "CompositeImplicitAutograd")
