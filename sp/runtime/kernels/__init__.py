"""Kernels: attention of one tile on one device.  One interface, a table of implementations.

B batch · H query heads · G key/value heads · S query rows of one tile · T its key columns · D head size
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sp.errors import StrategyError
from sp.plan import Tile
from sp.runtime.kernels import dense, flash


@dataclass(frozen=True)
class Kernel:
    """What computes a tile.

    check(q, k, v): raises when this kernel cannot compute attention of such tensors; fake tensors will do.
    cut(tile): the pieces to call it on, which cover the tile once.
    forward(q, k, v, piece, scale): out_BHSD, lse_BHS over the piece's rows and columns, to which q, k, v are cut.
    backward(grad_out, q, k, v, out, lse, piece, scale): the piece's parts of dq, dk, dv, given the `out` and `lse` of
    whole rows.
    """

    name: str
    check: Callable[[Tensor, Tensor, Tensor], None]
    cut: Callable[[Tile], tuple[Tile, ...]]
    forward: Callable[[Tensor, Tensor, Tensor, Tile, float], tuple[Tensor, Tensor]]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tile, float], tuple[Tensor, Tensor, Tensor]]


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("dense", dense.check, dense.cut, dense.forward, dense.backward),
        Kernel("flash", flash.check, flash.cut, flash.forward, flash.backward),
    )
}


def find_kernel(name: str) -> Kernel:
    """The kernel called `name`; StrategyError lists the known ones."""
    if name not in KERNELS:
        raise StrategyError(f"there is no kernel {name!r}", needed=f"one of: {', '.join(sorted(KERNELS))}")
    return KERNELS[name]
