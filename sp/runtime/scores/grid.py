"""What a score does to whole blocks of queries and keys: hides them, leaves them open, or neither for sure.

B batch · H query heads · N blocks of rows, M blocks of columns · W tokens of one block
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sp.layout import Run
from sp.runtime.scores.interval import Interval, anything
from sp.runtime.scores.intervals import bound_values
from sp.runtime.scores.tile import trained
from sp.score import HIDDEN_BELOW, POSITIONS, SCORE, Leaf, Score


@dataclass(frozen=True, eq=False)
class Side:
    """The tokens of some ranks, rank after rank, in blocks of neighbours that lie in one run.

    edges: for each rank, where its blocks begin in its local order, and where the last one ends.
    positions_NW: of the tokens, global; a shorter block repeats its last one."""

    edges: tuple[tuple[int, ...], ...]
    positions_NW: Tensor

    @staticmethod
    def of(ranks: Iterable[tuple[Run, ...]], width: int, device: torch.device) -> Side:
        edges: list[tuple[int, ...]] = []
        parts = [torch.empty((0, width), dtype=torch.int64, device=device)]
        for runs in ranks:
            begins: list[int] = []
            begin = 0
            for run in runs:
                starts_N1 = torch.arange(0, run.length, width, device=device).unsqueeze(1)
                index_NW = (starts_N1 + torch.arange(width, device=device)).clamp_(max=max(run.length - 1, 0))
                parts.append(index_NW * run.stride + run.start)
                begins += range(begin, begin + run.length, width)
                begin += run.length
            edges.append((*begins, begin))
        return Side(tuple(edges), torch.cat(parts))

    @property
    def counts(self) -> list[int]:
        """How many blocks each rank has."""
        return [len(edges) - 1 for edges in self.edges]

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The first and the last position of each block."""
        return self.positions_NW[:, 0], self.positions_NW[:, -1]


@dataclass(frozen=True, eq=False)
class Verdicts:
    """For each block, what holds for all its pairs in all batch elements and heads.

    softly_NM: hidden, if large negative numbers hide.  Neither hidden nor open: nothing is sure."""

    hidden_NM: Tensor
    softly_NM: Tensor
    open_NM: Tensor


def judge(score: Score, leaves: Sequence[Tensor], rows: Side, columns: Side, pairs: bool = True) -> Verdicts:
    """What is sure about each block.  pairs: look into leaves of queries × keys too, at the cost of reading them."""
    wanted = [name for name in (score.visible, score.bias) if name is not None]
    reached = score.reach(wanted)
    values = bound_values(score, known_intervals(score, leaves, rows, columns, reached, pairs), wanted)
    no = torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=rows.positions_NW.device)
    hidden, softly, opened = no, no, ~no if score.score is None else no
    if score.visible is not None:
        hidden, opened = hidden | ~values[score.visible].high, opened & values[score.visible].low
    if score.bias is not None:
        bias = values[score.bias]
        hidden, softly = hidden | (bias.high == -torch.inf), bias.high < HIDDEN_BELOW
        zero = (bias.low == 0) & (bias.high == 0)
        opened = opened & zero if reached.isdisjoint(trained(score)) else no
    shape = (len(rows.positions_NW), len(columns.positions_NW))
    return Verdicts(*(_for_all(x, shape) for x in (hidden, hidden | softly, opened)))


def known_intervals(
    score: Score, leaves: Sequence[Tensor], rows: Side, columns: Side, reached: Container[str], pairs: bool = True
) -> dict[str, Interval]:
    """Of the positions, of the score, which may be anything, and of the leaves that are `reached`."""
    query, key = POSITIONS
    known = {
        query: Interval(*(end.view(1, 1, -1, 1) for end in rows.ends)),
        key: Interval(*(end.view(1, 1, 1, -1) for end in columns.ends)),
        SCORE: anything(torch.zeros((1, 1, 1, 1), device=rows.positions_NW.device)),
    }
    for index, (leaf, x) in enumerate(zip(score.leaves, leaves, strict=True)):
        if f"l{index}" in reached:
            known[f"l{index}"] = _leaf(leaf, x, rows, columns) if pairs or leaf.form != "qk" else _unread(x)
    return known


def _for_all(verdict_BHNM: Tensor, shape: tuple[int, int]) -> Tensor:
    """Over batch and heads."""
    return verdict_BHNM.expand(-1, -1, *shape).flatten(0, 1).all(0)


def _leaf(leaf: Leaf, x: Tensor, rows: Side, columns: Side) -> Interval:
    """The least and the greatest value in each block, [B or 1, H or 1, N or 1, M or 1]; of a table, of each column."""
    if leaf.form == "table":
        return Interval(x.amin(0), x.amax(0))
    low = high = x
    if "q" in leaf.form:
        low, high = (_extreme(x, 2, rows, name) for name in ("amin", "amax"))
    if "k" in leaf.form:
        low, high = _extreme(low, 3, columns, "amin"), _extreme(high, 3, columns, "amax")
    return Interval(low, high)


def _extreme(x: Tensor, dim: int, side: Side, name: str) -> Tensor:
    """`amin` or `amax` over the tokens of each block; nan where one is nan."""
    blocks = x.index_select(dim, side.positions_NW.flatten()).unflatten(dim, side.positions_NW.shape)
    return torch.amin(blocks, dim + 1) if name == "amin" else torch.amax(blocks, dim + 1)


def _unread(x: Tensor) -> Interval:
    return anything(x[:, :, :1, :1])
