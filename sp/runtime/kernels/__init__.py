"""Kernels: attention of one tile on one device.  One interface, a table of implementations.

B batch · H query heads · G key/value heads · R query rows, C key columns of one tile · D, E head sizes of k and v
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sp.errors import StrategyError
from sp.plan import Tile
from sp.runtime.kernels import dense, flash
from sp.runtime.kernels.blockwise import Backward, Forward
from sp.runtime.kernels.choice import choose_kernel as choose_kernel
from sp.runtime.kernels.choice import filling as filling


@dataclass(frozen=True)
class Kernel:
    """What computes a tile.

    check(q, k, v): raises when this kernel cannot compute attention of such tensors; fake tensors will do.
    cut(tile, device): the pieces to call it on, which cover the tile once.
    forward(q, k, v, piece, scale, score): out_BHRE, lse_BHR over the piece's rows and columns, to which q, k, v are
    cut; score: what changes the scores inside of its band, None for nothing.  Rows that see nothing get 0 and -inf.
    backward(grad_out, q, k, v, out, lse, piece, scale, score, totals): the piece's parts of dq, dk, dv, given the `out`
    and `lse` of whole rows; adds to `totals` the gradients of the leaves of the score.
    """

    name: str
    check: Callable[[Tensor, Tensor, Tensor], None]
    cut: Callable[[Tile, str], tuple[Tile, ...]]
    forward: Forward
    backward: Backward


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
