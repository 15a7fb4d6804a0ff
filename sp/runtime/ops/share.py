"""What parameters keep of their gradients where these are summed over the ranks later, by others.

| op          | forward                                 | backward                                                |
|-------------|-----------------------------------------|---------------------------------------------------------|
| `sp::share` | the very same tensor, nothing is copied | divides by the world's size what all ranks find alike   |
| `sp::weigh` | the very same tensor, nothing is copied | multiplies by the world's size what its own tokens give |

`share` where others will sum the gradients (`sync_gradients=False`), `weigh` where they will be averaged (`no_sync`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sp.runtime.world import find_world


class _Scaled(torch.autograd.Function):
    """A view forward; the gradient times times/parts backward, in one rounding."""

    @staticmethod
    def forward(x: Tensor, times: int, parts: int) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        _, ctx.times, ctx.parts = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return (gradients[0] / ctx.parts if ctx.times == 1 else gradients[0] * ctx.times), None, None


def _share(x: Tensor, group: str) -> Tensor:
    """Replicated [shape] -> the same."""
    return _scaled(x, 1, find_world(group).size)


def _weigh(x: Tensor, group: str) -> Tensor:
    """Replicated [shape] -> the same."""
    return _scaled(x, find_world(group).size, 1)


def _scaled(x: Tensor, times: int, parts: int) -> Tensor:
    result = _Scaled.apply(x, times, parts)
    assert isinstance(result, Tensor)
    return result


# A custom op may not return its input: composite, as `sp::replicate` is.
_library = torch.library.Library("sp", "FRAGMENT")
_library.define("share(Tensor(a) x, str group) -> Tensor(a)")
_library.impl("share", _share, "CompositeImplicitAutograd")
_library.define("weigh(Tensor(a) x, str group) -> Tensor(a)")
_library.impl("weigh", _weigh, "CompositeImplicitAutograd")
