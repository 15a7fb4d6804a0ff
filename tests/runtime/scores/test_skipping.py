"""Every pair is either in one piece or hidden, and pieces say the truth: for all scores, layouts, worlds and lengths.

The judge is each case's own definition in plain torch (`cases.py`), evaluated whole.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sp.layout import LAYOUTS
from sp.mask import CAUSAL, FULL, Band
from sp.plan import Plan, Tile, count_steps, make_plan
from sp.runtime.scores import BoundScore
from sp.score import HIDDEN_BELOW
from tests.runtime.scores.cases import CASES, Case

CPU = torch.device("cpu")
BANDS = [FULL, CAUSAL, Band(13, 0), Band(6, 9)]
SIZES = [(1, 40, 40), (2, 64, 64), (3, 47, 47), (4, 61, 61), (2, 50, 37), (4, 3, 3)]  # world, queries, keys
BLOCK = 4


def pairs_of(tile: Tile) -> Tensor:
    """Which pairs of its rectangle a tile sees."""
    offset = torch.arange(tile.k1 - tile.k0) - torch.arange(tile.q1 - tile.q0).unsqueeze(1)
    seen = torch.ones_like(offset, dtype=torch.bool)
    seen = seen if tile.lower is None else seen & (offset >= tile.lower)
    return seen if tile.upper is None else seen & (offset <= tile.upper)


def positions(plan: Plan, total: int, rank: int) -> Tensor:
    return torch.tensor(plan.layout.positions(total, rank, plan.world), dtype=torch.long)


def sees_something(dense: Tensor, band: Tensor) -> bool:
    """Whether each query of each batch element and head sees a key that no large number hides."""
    return bool(((dense > HIDDEN_BELOW) & band).any(-1).all())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pieces_are_exact(case: Case, layout: str) -> None:
    for world, length, keys in SIZES:
        leaves = case.leaves(length, keys)
        dense = case.dense(leaves, length, keys)
        for band in BANDS:
            steps = set()
            for rank in range(world):
                plan = make_plan(layout, band, length, world, rank, keys)
                bound = BoundScore.bind(case.text, leaves, plan, CPU, BLOCK)
                steps.add(check_rank(bound, dense))
            assert len(steps) == 1, "ranks disagree about the number of steps"


def check_rank(bound: BoundScore, dense: Tensor) -> int:
    plan = bound.plan
    i, j = torch.arange(plan.length).unsqueeze(1), torch.arange(plan.keys)
    band = torch.ones(plan.length, plan.keys, dtype=torch.bool)
    band = band if plan.mask.left is None else band & (j >= i - plan.mask.left)
    band = band if plan.mask.right is None else band & (j <= i + plan.mask.right)
    hidden = (dense == -torch.inf) | ((dense < HIDDEN_BELOW) & sees_something(dense, band))
    rows = positions(plan, plan.length, plan.rank)
    for hop, step in enumerate(plan.steps):
        columns = positions(plan, plan.keys, step.source)
        here = dense[:, :, rows.unsqueeze(1), columns]
        count = torch.zeros(len(rows), len(columns), dtype=torch.long)
        for tile in step.tiles if hop < bound.count_steps() else ():
            for piece in bound.against(step.source).cut(tile):
                part = slice(piece.tile.q0, piece.tile.q1), slice(piece.tile.k0, piece.tile.k1)
                count[part] += pairs_of(piece.tile)
                added = here[(..., *part)]
                if piece.score is None:
                    assert (added == 0)[:, :, pairs_of(piece.tile)].all(), "the score changes this pair"
                elif piece.score.form == "added":
                    found = piece.score.added(torch.float64).expand_as(added)
                    torch.testing.assert_close(found, added, rtol=1e-6, atol=0)
                else:
                    s = torch.randn(added.shape, dtype=torch.float64)
                    lift = 0.0 if piece.score.lift_BHR1 is None else piece.score.lift_BHR1
                    torch.testing.assert_close(piece.score.apply(s), s + added - lift, rtol=1e-6, atol=1e-6)
        visible = band[rows.unsqueeze(1), columns]
        assert (count <= 1).all(), "a pair is in two pieces"
        assert not (count.bool() & ~visible).any(), "the band hides this pair"
        missing = visible & ~count.bool()
        assert hidden[:, :, rows.unsqueeze(1), columns][:, :, missing].all(), "a pair is missing"
    assert bound.count_steps() <= count_steps(plan)
    return bound.count_steps()
