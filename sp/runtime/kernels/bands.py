"""Where a band hides scores."""

from __future__ import annotations

import torch
from torch import Tensor

from sp.plan import Tile


def hidden(tile: Tile, device: torch.device) -> Tensor | None:
    """Where the band of `tile` hides a key from a query, bool over its rows and columns; None for nowhere."""
    return None if tile.kind == "full" else _outside(tile, True, torch.bool, device)


def added(tile: Tile, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What hides the same when it is added to scores: 0 or -inf over the rows and columns of a band."""
    return _outside(tile, -torch.inf, dtype, device)


def _outside(tile: Tile, value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`value` outside of the band, 0 in it.  By triangles, which cost a pass each."""
    size = (tile.q1 - tile.q0, tile.k1 - tile.k0)
    sides: list[Tensor] = []
    if tile.upper is not None:
        sides.append(torch.full(size, value, dtype=dtype, device=device).triu_(tile.upper + 1))
    if tile.lower is not None:
        sides.append(torch.full(size, value, dtype=dtype, device=device).tril_(tile.lower - 1))
    return sides[0] if len(sides) == 1 else sides[0].add_(sides[1])
