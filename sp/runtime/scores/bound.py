"""A score bound to its leaves and to the plan of one rank, and cut to the tiles against one source rank.

B batch · H query heads · S local queries

Leaves are whole: replicated on every rank and of global length, so that each rank can cut them for its own queries and
for the keys of any source, and all ranks decide alike what is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sp.plan import Plan, Tile, count_steps
from sp.runtime.merge import accumulation_dtype
from sp.runtime.scores.blocks import cut_blocks
from sp.runtime.scores.evaluate import evaluate
from sp.runtime.scores.gradients import sweep
from sp.runtime.scores.leaves import check_leaves, known_values, leaf_of_heads, positions_of
from sp.runtime.scores.lift import find_lift
from sp.runtime.scores.sight import find_seeing
from sp.runtime.scores.skipping import Skipping, find_skipping
from sp.runtime.scores.tile import Piece, TileScore, add_gradients, trained
from sp.score import Score


@dataclass(frozen=True, eq=False)
class BoundScore:
    """`score` with its global `leaves`, for one rank's `plan`.

    device: of q.  block: how many rows and columns are at least skipped together."""

    score: Score
    leaves: tuple[Tensor, ...]
    plan: Plan
    device: torch.device
    block: int = 256

    @staticmethod
    def bind(text: str, leaves: Sequence[Tensor], plan: Plan, device: torch.device, block: int = 256) -> BoundScore:
        """From the text of a score and its global leaves, which are asserted to lie in the frame."""
        score = Score.parse(text)
        check_leaves(score, leaves, plan.length, plan.keys)
        return BoundScore(score, tuple(x.detach() for x in leaves), plan, device, block)

    def against(self, source: int) -> SourceScore:
        """The score against the keys of rank `source`."""
        keys = self.plan.layout.runs(self.plan.keys, source, self.plan.world)
        return SourceScore(self, source, self.own_rows, positions_of(keys, self.device))

    def count_steps(self) -> int:
        """How many steps a ring needs until no rank has work left: the same on all ranks."""
        return self.skipping.steps if self.changes else count_steps(self.plan)

    def sink(self) -> Tensor | None:
        """The scores of one more key for the local queries, [B or 1, H or 1, S or 1, 1]; None if there is none."""
        return None if self.score.sink is None else self._sink_values()[self.score.sink]

    def empty_gradients(self) -> list[Tensor]:
        """Zeros for the gradients of all leaves that train, in the dtype of sums; nothing for the other leaves."""
        return [
            torch.zeros_like(x, dtype=accumulation_dtype(x.dtype)) if leaf.trains else x.new_empty(0)
            for leaf, x in zip(self.score.leaves, self.leaves, strict=True)
        ]

    def of_heads(self, heads: range, plan: Plan) -> BoundScore:
        """The score of these query heads alone, counted from the first of them, for another plan of the same tokens."""
        return replace(self, leaves=tuple(leaf_of_heads(x, heads) for x in self.leaves), plan=plan)

    def gradients_of_heads(self, heads: range, found: Sequence[Tensor]) -> list[Tensor]:
        """The gradients that `of_heads(heads, …)` finds for its leaves, put where they belong in those of all heads."""
        totals = self.empty_gradients()
        for leaf, total, part in zip(self.score.leaves, totals, found, strict=True):
            if leaf.trains:
                leaf_of_heads(total, heads).copy_(part)
        return totals

    def add_sink_gradient(self, totals: list[Tensor], grad_BHS1: Tensor) -> None:
        """Add the leaves' part of the gradient of `sink()` to `totals`."""
        assert self.score.sink is not None, "this score has no sink"
        grads = sweep(self.score, self._sink_values(), {self.score.sink: grad_BHS1}, trained(self.score))
        add_gradients(self.score, grads, totals, self.own_rows, None)

    @property
    def changes(self) -> bool:
        """Whether it changes any score; a sink alone changes none."""
        return any(name is not None for name in (self.score.score, self.score.bias, self.score.visible))

    @cached_property
    def skipping(self) -> Skipping:
        """What need not be computed."""
        return find_skipping(self.score, self.leaves, self.plan, self.block, self.device, self._all_see)

    @cached_property
    def lift(self) -> Tensor | None:
        """What is taken off the scores of queries that see nothing, [B or 1, H or 1, S, 1]; None if all see."""
        adds = self.score.bias is not None or self.score.score is not None
        if not adds or self.score.sink is not None:
            return None
        sees_BHS1 = self._seeing.index_select(2, self.own_rows)
        return find_lift(self.score, self.leaves, self.plan, self.own_rows, sees_BHS1)

    @cached_property
    def lifted_rows(self) -> list[bool]:
        """Of the local queries, those that `lift` changes in some batch element or head."""
        lift_BHS1 = self.lift
        return [] if lift_BHS1 is None else (lift_BHS1 != 0).flatten(0, 1).any(0).flatten().tolist()

    @cached_property
    def _seeing(self) -> Tensor:
        return find_seeing(self.score, self.leaves, self.plan.mask, self.plan.length, self.plan.keys, self.device)

    def _all_see(self) -> bool:
        """A sink is one more key, which all queries see."""
        return self.score.sink is not None or bool(self._seeing.all())

    @cached_property
    def own_rows(self) -> Tensor:
        """The global positions of the local queries."""
        queries = self.plan.queries.runs(self.plan.length, self.plan.rank, self.plan.world)
        return positions_of(queries, self.device)

    def _sink_values(self) -> dict[str, Tensor]:
        wanted = [self.score.sink or ""]
        return evaluate(self.score, known_values(self.score, self.leaves, self.own_rows, None, wanted), wanted)


@dataclass(frozen=True, eq=False)
class SourceScore:
    """A bound score for the local queries, at the positions `rows_S`, and the keys of one source, at `columns_T`."""

    bound: BoundScore
    source: int
    rows_S: Tensor
    columns_T: Tensor

    def cut(self, tile: Tile) -> tuple[Piece, ...]:
        """Pieces that cover each visible pair of a trimmed `tile` once; what is surely hidden is left out."""
        if not self.bound.changes:
            return (Piece(tile),)
        parts = cut_blocks(tile, self.bound.skipping.blocks[self.source])
        return tuple(Piece(part, self._tile_score(part) if mixed else None) for part, mixed in parts)

    def _tile_score(self, tile: Tile) -> TileScore:
        rows_R, columns_C = self.rows_S[tile.q0 : tile.q1], self.columns_T[tile.k0 : tile.k1]
        lifted = any(self.bound.lifted_rows[tile.q0 : tile.q1])
        lift_BHR1 = self.bound.lift.narrow(2, tile.q0, len(rows_R)) if lifted and self.bound.lift is not None else None
        return TileScore(self.bound.score, self.bound.leaves, rows_R, columns_C, lift_BHR1)
