"""Whether large negative numbers hide: they do where each query surely sees some key besides.

A mask that adds finfo.min hides a key from a query that sees another one: its weight is exp(-1e38).  A query from which
all keys are hidden so sees all of them alike, and none may be skipped.

B batch · H query heads · S queries, global
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sp.mask import Band
from sp.runtime.scores.interval import Interval
from sp.runtime.scores.intervals import bound_values
from sp.score import HIDDEN_BELOW, POSITIONS, SCORE, Leaf, Score


def find_seeing(
    score: Score, leaves: Sequence[Tensor], band: Band, length: int, keys: int, device: torch.device
) -> Tensor:
    """Which queries surely see themselves, the first or the last key: bool [B or 1, H or 1, S, 1].

    Sufficient, at the cost of three keys for each query.  From global leaves alone, so the same on every rank."""
    sees = torch.zeros((1, 1, length, 1), dtype=torch.bool, device=device)
    for columns_S in _candidates(length, device) if length == keys else ():
        sees = sees | _see(score, leaves, band, columns_S)
    return sees


def _candidates(length: int, device: torch.device) -> Iterator[Tensor]:
    own_S = torch.arange(length, device=device)
    yield from (own_S, torch.zeros_like(own_S), torch.full_like(own_S, length - 1))


def _see(score: Score, leaves: Sequence[Tensor], band: Band, columns_S: Tensor) -> Tensor:
    """Whether query n surely sees the key at `columns_S[n]`, whatever its scaled score: [B or 1, H or 1, S, 1]."""
    rows_S = torch.arange(len(columns_S), device=columns_S.device)
    i, j = rows_S.view(1, 1, -1, 1), columns_S.view(1, 1, -1, 1)
    pairs = zip(score.leaves, leaves, strict=True)
    values = [Interval(i, i), Interval(j, j), *(_pairwise(leaf, x, rows_S, columns_S) for leaf, x in pairs)]
    names = [*POSITIONS, *(f"l{index}" for index in range(len(leaves)))]
    known = dict(zip(names, values, strict=True))
    roles = [name for name in (score.visible, score.bias, score.score) if name is not None]
    values = bound_values(score, {**known, SCORE: _any_number(columns_S.device)}, roles)
    sees = torch.ones_like(i, dtype=torch.bool)
    sees = sees if band.left is None else sees & (j - i >= -band.left)
    sees = sees if band.right is None else sees & (j - i <= band.right)
    sees = sees if score.visible is None else sees & values[score.visible].low
    # Together half as far down as what is hidden: no score makes up for the rest.
    for name in (score.bias, score.score):
        sees = sees if name is None else sees & (values[name].low > HIDDEN_BELOW / 4)
    return sees


def _any_number(device: torch.device) -> Interval:
    """A scaled score: any finite number."""
    most = torch.full((1, 1, 1, 1), torch.finfo(torch.float32).max, dtype=torch.float64, device=device)
    return Interval(-most, most)


def _pairwise(leaf: Leaf, x: Tensor, rows_S: Tensor, columns_S: Tensor) -> Interval:
    """For each query its own key, which lies in the dim of the queries; of a table, the ends of each column."""
    match leaf.form:
        case "table":
            return Interval(x.amin(0), x.amax(0))
        case "k":
            x = x.index_select(3, columns_S).mT
        case "qk":
            x = x[:, :, rows_S, columns_S].unsqueeze(-1)
        case _:
            pass
    return Interval(x, x)
