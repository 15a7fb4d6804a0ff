"""The plans of all ranks as a grid: what each rank computes while whose keys and values are with it.

    zigzag  causal  world=4  local=16  step 0  step 1      step 2      step 3      work
    rank 0                             causal  full q[8:]  full q[8:]  full q[8:]  25.0 %
    rank 1                             causal  full k[:8]  full q[8:]  full q[8:]  25.0 %

A tile names only the queries and keys that are not all of the rank's own and all of its source's; `band[-3:0]` sees
key - query from -3 to 0, counted from the tile's corner.
"""

from __future__ import annotations

from sp.mask import Band
from sp.plan import Plan, Tile, make_plan
from sp.show.words import between, percent, table

WIDEST = 16
_MOST = 4  # tiles in a cell, if each is to be shown


def plan_grid(
    layout: str, mask: Band, length: int, world: int, keys: int | None = None, inner: int | None = None
) -> str:
    """One row per rank and one column per step; of large worlds the first ones and the last.  inner: see `Plan`.

    >>> from sp.mask import CAUSAL
    >>> print(sp.show.plan_grid("striped", CAUSAL, length=8, world=2))
    striped  causal  world=2  local=4  step 0  step 1          work
    rank 0                             causal  …
    rank 1                             causal  …
    """
    shown = _shown(world)
    plans = {rank: make_plan(layout, mask, length, world, rank, keys, inner) for rank in shown if rank is not None}
    everything = make_plan(layout, mask, length, 1, 0, keys).area
    lengths = [queries_of(plans[0], rank) for rank in range(world)]
    title = f"{layout}  {mask}  world={world}  local={between(min(lengths), max(lengths))}"
    headers = (title, *("…" if step is None else f"step {step}" for step in shown), "work")
    rows = [_row(None if rank is None else plans[rank], shown, everything) for rank in shown]
    return table([headers, *rows])


def _shown(world: int) -> list[int | None]:
    """None stands for those left out."""
    return list(range(world)) if world <= WIDEST else [*range(WIDEST - 2), None, world - 1]


def _row(plan: Plan | None, shown: list[int | None], everything: int) -> tuple[str, ...]:
    if plan is None:
        return ("…",) * (len(shown) + 2)
    cells = ["…" if step is None else _cell(plan, step) for step in shown]
    return (f"rank {plan.rank}", *cells, percent(plan.area / everything))


def _cell(plan: Plan, step: int) -> str:
    queries, keys = queries_of(plan, plan.rank), keys_of(plan, plan.steps[step].source)
    tiles = plan.steps[step].tiles
    shown = [short_tile(tile, queries, keys) for tile in tiles[:_MOST]]
    return " + ".join(shown if len(tiles) <= _MOST else [shown[0], f"{len(tiles) - 1} more"])


def short_tile(tile: Tile, queries: int, keys: int) -> str:
    """`causal`, `full q[8:]`, `band[-3:0] k[:4]`: relative to that many local queries and keys."""
    kind = tile.kind if tile.kind != "band" else f"band[{_bound(tile.lower)}:{_bound(tile.upper)}]"
    return kind + _part("q", tile.q0, tile.q1, queries) + _part("k", tile.k0, tile.k1, keys)


def _bound(bound: int | None) -> str:
    return "" if bound is None else str(bound)


def _part(name: str, start: int, stop: int, length: int) -> str:
    if (start, stop) == (0, length):
        return ""
    return f" {name}[{start or ''}:{'' if stop == length else stop}]"


def queries_of(plan: Plan, rank: int) -> int:
    """How many queries a rank holds."""
    return plan.layout.local_length(plan.length, rank, plan.world)


def keys_of(plan: Plan, rank: int) -> int:
    """How many keys a rank holds."""
    return plan.layout.local_length(plan.keys, rank, plan.world)
