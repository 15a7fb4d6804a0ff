"""The score on the rows and columns of one piece: what a kernel adds to, or computes from, the scores of the piece.

B batch · H query heads · R rows, C columns of the piece
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sp.plan import Tile
from sp.runtime.scores.evaluate import evaluate
from sp.runtime.scores.gradients import sweep
from sp.runtime.scores.leaves import add_to_leaf, known_values
from sp.score import SCORE, Score


@dataclass(frozen=True)
class Piece:
    """A part of a tile of the plan, its band counted from its own first row and column.

    score: what changes its scores; None where nothing does, so that it is a tile like any other."""

    tile: Tile
    score: TileScore | None = None


@dataclass(frozen=True, eq=False)
class TileScore:
    """`score` with its global `leaves`, for the queries and keys at the global positions `rows_R` and `columns_C`.

    lift: what is taken off all scores of a query (see `lift`), [B or 1, H or 1, R, 1]; None for nothing."""

    score: Score
    leaves: tuple[Tensor, ...]
    rows_R: Tensor
    columns_C: Tensor
    lift_BHR1: Tensor | None = None

    def part(self, q0: int, q1: int, k0: int, k1: int) -> TileScore:
        """On these of the rows and columns."""
        lift_BHR1 = None if self.lift_BHR1 is None else self.lift_BHR1[:, :, q0:q1]
        return TileScore(self.score, self.leaves, self.rows_R[q0:q1], self.columns_C[k0:k1], lift_BHR1)

    @property
    def form(self) -> Literal["added", "function"]:
        """added: it is a tensor that is added to the scores and does not train, so that flash attention takes it."""
        return form_of(self.score) if self.lift_BHR1 is None else "function"

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether `added` in this dtype is what the model adds, unrounded."""
        if self.score.bias is None or dtype in (torch.float32, torch.float64):
            return True
        return self.part(0, 1, 0, 1)._values(None)[self.score.bias].dtype == dtype

    def added(self, dtype: torch.dtype) -> Tensor:
        """What the scores get added: 0, bias or -inf, in `dtype`.  Broadcasts to BHRC; the band is not in it."""
        assert self.form == "added", "a score that is a function of the scores, or trains, is no tensor to add"
        values = self._values(None)
        bias, visible = values.get(self.score.bias or ""), values.get(self.score.visible or "")
        added = torch.zeros((), dtype=dtype, device=self.rows_R.device) if bias is None else bias.to(dtype)
        return added if visible is None else torch.where(visible, added, -torch.inf)

    def apply(self, s_BHRC: Tensor) -> Tensor:
        """The new scores in the dtype of the scaled scores `s`, which stay as they are; the band is not applied."""
        return self.applied(s_BHRC).to(s_BHRC.dtype).expand_as(s_BHRC)

    def applied(self, s_BHRC: Tensor) -> Tensor:
        """The new scores of `s` that may broadcast, in the dtype of the arithmetic."""
        values = self._values(s_BHRC)
        new_BHRC = values.get(self.score.score or SCORE, s_BHRC)
        if self.score.bias is not None:
            new_BHRC = new_BHRC + values[self.score.bias]
        if self.lift_BHR1 is not None:
            new_BHRC = new_BHRC - self.lift_BHR1.to(new_BHRC.dtype)
        if self.score.visible is not None:
            new_BHRC = torch.where(values[self.score.visible], new_BHRC, -torch.inf)
        return new_BHRC

    def gradient(self, s_BHRC: Tensor, grad_BHRC: Tensor, totals: list[Tensor]) -> Tensor:
        """The gradient of `s`, given that of the new scores; adds those of the leaves that train to `totals`.

        totals: as `BoundScore.empty_gradients` makes them."""
        values = self._values(s_BHRC)
        visible = values.get(self.score.visible or "")
        if visible is not None:
            grad_BHRC = torch.where(visible, grad_BHRC, 0.0)
        seeds = {name: grad_BHRC for name in (self.score.bias, self.score.score or SCORE) if name is not None}
        grads = sweep(self.score, values, seeds, (SCORE, *trained(self.score)))
        add_gradients(self.score, grads, totals, self.rows_R, self.columns_C)
        return grads[SCORE] if SCORE in grads else torch.zeros_like(s_BHRC)

    def _values(self, s_BHRC: Tensor | None) -> dict[str, Tensor]:
        wanted = [name for name in (self.score.visible, self.score.bias, self.score.score) if name is not None]
        known = known_values(self.score, self.leaves, self.rows_R, self.columns_C, wanted)
        return evaluate(self.score, known if s_BHRC is None else {**known, SCORE: s_BHRC}, wanted)


def form_of(score: Score) -> Literal["added", "function"]:
    """See `TileScore.form`."""
    reached = score.reach([name for name in (score.bias, score.visible) if name is not None])
    plain = score.score is None and SCORE not in reached and reached.isdisjoint(trained(score))
    return "added" if plain else "function"


def trained(score: Score) -> tuple[str, ...]:
    """The names of the leaves that train."""
    return tuple(f"l{index}" for index, leaf in enumerate(score.leaves) if leaf.trains)


def add_gradients(
    score: Score, grads: dict[str, Tensor], totals: list[Tensor], rows_R: Tensor, columns_C: Tensor | None
) -> None:
    """Add the gradients of cut leaves to those of the whole ones."""
    for index, leaf in enumerate(score.leaves):
        if leaf.trains and f"l{index}" in grads:
            add_to_leaf(leaf, totals[index], grads[f"l{index}"], rows_R, columns_C)
