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


INF, NAN = float("inf"), float("nan")
LEAST = torch.iinfo(torch.int64).min
EVERYTHING = (NAN, NAN)
# A line on x, y and c = x < y, the values of x and of y in one block, and the ends that must come out.
EXACT = [
    ("abs.default(x)", [-3, 2], [0], (0, 3)),
    ("abs.default(x)", [3, 5], [0], (3, 5)),
    ("abs.default(x)", [LEAST, 5], [0], (LEAST, -LEAST - 1)),
    ("neg.default(x)", [-3, 2], [0], (-2, 3)),
    ("mul.Tensor(x, y)", [-1.0, 1.0], [INF], EVERYTHING),  # 0 × inf in between
    ("mul.Tensor(x, y)", [INF, INF], [-2.0, 1.0], EVERYTHING),
    ("mul.Tensor(x, y)", [-3.0, 2.0], [-1.0, 4.0], (-12, 8)),
    ("mul.Tensor(x, y)", [2**40, 2**41], [2**30, 2], (LEAST, -LEAST - 1)),  # wraps around
    ("add.Tensor(x, y)", [2**60, 2**60 + 1], [1, 3], (2**60 + 1, 2**60 + 4)),  # no float holds these
    ("sub.Tensor(x, y)", [INF, 1.0], [INF], EVERYTHING),
    ("add.Tensor(x, y)", [-INF, 1.0], [-INF], (-INF, -INF)),
    ("rsub.Scalar(x, 1.0)", [0.0, 1.0], [0], (0, 1)),
    ("div.Tensor(x, y)", [1.0, 2.0], [-1.0, 1.0], EVERYTHING),
    ("div.Tensor(x, y)", [1.0, 2.0], [2.0, 4.0], (0.25, 1)),
    ("div.Tensor_mode(x, y, rounding_mode='floor')", [-5, 130], [64], (-1, 2)),
    ("floor_divide.default(x, y)", [LEAST, 0], [-1], (LEAST, -LEAST - 1)),
    ("remainder.Scalar(x, 64)", [130, 140], [0], (2, 12)),
    ("remainder.Scalar(x, 64)", [-3, 70], [0], (0, 63)),
    ("eq.Tensor(x, y)", [2**53, 2**53], [2**53 + 1], (False, False)),
    ("eq.Tensor(x, y)", [4, 4], [4, 4], (True, True)),
    ("eq.Tensor(x, y)", [3, 5], [4], (False, True)),
    ("lt.Tensor(x, y)", [1.0, NAN], [5.0], (False, True)),
    ("ne.Tensor(x, y)", [NAN, NAN], [5.0], (False, True)),
    ("le.Tensor(x, y)", [1, 5], [5, 9], (True, True)),
    ("logical_not.default(x)", [0.0, 0.0], [0], (True, True)),
    ("logical_and.default(x, y)", [1, 2], [-3, -1], (True, True)),
    ("_to_copy.default(x, dtype='int64')", [-1.9, 2.9], [0], (-1, 2)),
    ("_to_copy.default(x, dtype='int64')", [1.0, 1e30], [0], (LEAST, -LEAST - 1)),
    ("_to_copy.default(x, dtype='bool')", [1.0, 2.0], [0], (True, True)),
    ("_to_copy.default(x, dtype='float16')", [1.0, 1e6], [0], (1, INF)),
    ("where.self(c, x, y)", [1, 2], [5, 6], (1, 2)),
    ("where.self(c, x, y)", [7, 8], [5, 6], (5, 6)),
    ("where.self(c, x, y)", [1, 9], [5, 6], (1, 9)),
    ("tanh.default(x)", [-100.0, 100.0], [0], (-1, 1)),
    ("tanh.default(x)", [NAN, 100.0], [0], EVERYTHING),
    ("exp.default(x)", [0.0, 1.0], [0], EVERYTHING),  # no rule
    ("clamp.default(x, 0, 3)", [-5, 2], [0], (0, 2)),
]


@pytest.mark.parametrize(("call", "x", "y", "expected"), EXACT)
def test_ends(call: str, x: list[float], y: list[float], expected: tuple[float, float]) -> None:
    known = {name: _around(torch.tensor(values)) for name, values in (("x", x), ("y", y))}
    found = bound_values(Score.parse(f"c = lt.Tensor(x, y); a = {call} -> bias=a"), known, ["a"])["a"]
    ends = torch.stack([found.low, found.high]).flatten()
    torch.testing.assert_close(ends, torch.tensor(expected).to(ends.dtype), rtol=0, atol=0, equal_nan=True)


def _around(values: Tensor) -> Interval:
    return Interval(values.amin().view(1, 1, 1, 1), values.amax().view(1, 1, 1, 1))


def test_a_table_is_between_the_ends_of_its_columns() -> None:
    table = torch.tensor([[1.0, 5.0], [3.0, 4.0]])
    score = Score.parse("l0:table l1:q; a = lookup(l0, l1) -> bias=a")
    side = Side.of([(Run(0, 1, 4),)], 2, CPU)
    known = known_intervals(score, [table, torch.zeros(1, 1, 4, 1, dtype=torch.long)], side, side, {"l0", "l1"})
    found = bound_values(score, known, ["a"])["a"]
    assert found.low.flatten().tolist() == [1, 4]
    assert found.high.flatten().tolist() == [3, 5]
