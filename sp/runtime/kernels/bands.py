"""Where a band hides scores, and what becomes of scores that are hidden by a number."""

from __future__ import annotations

import torch
from torch import Tensor

from sp.plan import Tile
from sp.score import HIDDEN_BELOW

# Where a mask that adds a number below HIDDEN_BELOW hides every key from a query, nothing is left of the scores beside
# that number: all are the same, and the row is the mean of all values.  In a sum of exponentials such a score counts as
# exp(FAINT): nothing beside any other, and a number beside which the logarithm of a count is not lost.
FAINT = -2000.0


def hidden(tile: Tile, device: torch.device) -> Tensor | None:
    """Where the band of `tile` hides a key from a query, bool over its rows and columns; None for nowhere."""
    if tile.kind == "full":
        return None
    x_R1 = torch.arange(tile.q1 - tile.q0, device=device).unsqueeze(1)
    y_C = torch.arange(tile.k1 - tile.k0, device=device)
    sides: list[Tensor] = []
    if tile.lower is not None:
        sides.append(y_C < x_R1 + tile.lower)
    if tile.upper is not None:
        sides.append(y_C > x_R1 + tile.upper)
    return sides[0] if len(sides) == 1 else sides[0].logical_or_(sides[1])


def faint(scores: Tensor) -> Tensor:
    """Where a score is hidden by a number, not by -inf."""
    return (scores < HIDDEN_BELOW).logical_and_(scores > -torch.inf)
