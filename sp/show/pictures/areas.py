"""How many pairs of query and key each rank has, in closed form: at once for worlds of thousands."""

from __future__ import annotations

from sp.layout import Run, find_layout
from sp.mask import Band


def rank_areas(layout: str, mask: Band, queries: int, keys: int, world: int) -> tuple[int, ...]:
    """The area of every rank's plan, one head.  Equal to `make_plan(...).area`, without its steps."""
    rule = find_layout(layout)
    return tuple(
        sum(_area(run, mask, keys) for run in rule.runs(queries, rank, world) if run.length) for rank in range(world)
    )


def _area(run: Run, mask: Band, keys: int) -> int:
    """Position i sees the keys from i - left up to i + right: those below the end, less those below the beginning."""
    ends = run.length * keys if mask.right is None else _clamped_sum(run, mask.right + 1, keys)
    begins = 0 if mask.left is None else _clamped_sum(run, -mask.left, keys)
    return max(ends - begins, 0)  # a band may leave nothing between its sides


def _clamped_sum(run: Run, shift: int, most: int) -> int:
    """The sum of `min(max(i + shift, 0), most)` over the positions i of a run."""
    first, last = run.count_below(-shift), run.count_below(most - shift)
    start = run.start + first * run.stride + shift
    between = last - first
    return between * start + run.stride * between * (between - 1) // 2 + (run.length - last) * most
