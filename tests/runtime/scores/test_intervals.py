"""No value may lie outside of its interval: random programs over random leaves, in blocks of a random layout."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from sp.layout import LAYOUTS, Run
from sp.runtime.scores.evaluate import evaluate
from sp.runtime.scores.grid import Side, known_intervals
from sp.runtime.scores.interval import Interval
from sp.runtime.scores.intervals import bound_values
from sp.runtime.scores.leaves import known_values, positions_of
from sp.score import Score
from tests.runtime.scores.random_scores import random_score

CPU = torch.device("cpu")
Runs = tuple[Run, ...]


def escapes(score: Score, leaves: list[Tensor], rows: Runs, columns: Runs, width: int) -> list[str]:
    """The lines of which some value lies outside of its interval."""
    names = [line.name for line in score.lines]
    rows_R, columns_C = (positions_of(runs, CPU) for runs in (rows, columns))
    try:
        values = evaluate(score, known_values(score, leaves, rows_R, columns_C, names), names)
    except RuntimeError as error:
        if "ZeroDivisionError" in str(error):  # the program itself divides integers by zero
            return []
        raise
    sides = Side.of([rows], width, CPU), Side.of([columns], width, CPU)
    bounds = bound_values(score, known_intervals(score, leaves, *sides, score.reach(names)), names)
    blocks = [_block_of(side) for side in sides]
    return [str(line) for line in score.lines if not _inside(values[line.name], bounds[line.name], *blocks)]


def _block_of(side: Side) -> Tensor:
    edges = torch.tensor(side.edges[0])
    return torch.arange(len(edges) - 1).repeat_interleave(edges.diff())


def _inside(value: Tensor, bound: Interval, row_R: Tensor, column_C: Tensor) -> bool:
    assert value.dtype == bound.low.dtype
    low, high = (_spread(end, row_R, column_C) for end in (bound.low, bound.high))
    value = value.expand(torch.broadcast_shapes(value.shape, low.shape))
    inside = (low <= value) & (value <= high)
    return bool((inside | (low.isnan() & high.isnan())).all())


def _spread(end: Tensor, row_R: Tensor, column_C: Tensor) -> Tensor:
    """From blocks to their rows and columns."""
    if end.dim() == 0:
        return end
    end = end if end.shape[2] == 1 else end[:, :, row_R]
    return end if end.shape[3] == 1 else end[:, :, :, column_C]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_stay_inside(seed: int) -> None:
    choice = random.Random(seed)
    for _ in range(15):
        length, keys, world = choice.randint(4, 40), choice.randint(4, 40), choice.randint(1, 3)
        layout = LAYOUTS[choice.choice(list(LAYOUTS))]
        rows, columns = (layout.runs(total, choice.randrange(world), world) for total in (length, keys))
        score, leaves = random_score(choice, length, keys, 8)
        assert escapes(score, leaves, rows, columns, choice.randint(1, 8)) == []
