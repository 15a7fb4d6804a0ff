"""The same attention over so few tokens that every pair of query and key can be drawn, in the sequence's order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sp.layout import Layout, find_layout
from sp.mask import Band
from sp.plan import Plan
from sp.show.grid import WIDEST
from sp.show.pictures.tiling import Setting

_TOKENS, _OWNED = 32, 16

Cells = tuple[int, int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class Miniature:
    """cells: (rank, step, the (query, key) positions that the rank computes in that step).
    owners: the rank of each token of a sequence that is shorter still."""

    length: int
    cells: tuple[Cells, ...]
    owners: tuple[int, ...]


def make_miniature(setting: Setting) -> Miniature | None:
    """None where it would show nothing true: of large worlds, of two lengths, of stripes wider than a token."""
    if setting.world > WIDEST or setting.local or setting.queries != setting.keys or ":" in setting.layout:
        return None
    length = _short(setting.world, _TOKENS)
    small = replace(setting, mask=_scaled(setting.mask, length, setting.queries), queries=length, keys=length)
    plans = [small.plan(rank) for rank in range(small.world)]
    cells = tuple(cells for plan in plans for cells in _cells(plan))
    return Miniature(length, cells, _owners(find_layout(setting.layout), setting.world))


def _cells(plan: Plan) -> Iterator[Cells]:
    held = [plan.layout.positions(plan.length, rank, plan.world) for rank in range(plan.world)]
    for number, step in enumerate(plan.steps):
        mine, theirs = held[plan.rank], held[step.source]
        pairs = (
            (mine[x], theirs[y])
            for tile in step.tiles
            for x in range(tile.q0, tile.q1)
            for y in range(tile.k0, tile.k1)
            if tile.visible(x, y)
        )
        yield plan.rank, number, tuple(sorted(pairs))


def _owners(layout: Layout, world: int) -> tuple[int, ...]:
    length = _short(world, _OWNED)
    ranks = {token: rank for rank in range(world) for token in layout.positions(length, rank, world)}
    return tuple(ranks[token] for token in range(length))


def _short(world: int, tokens: int) -> int:
    """At least two tokens for each rank, and as many for all."""
    return world * max(2, tokens // world)


def _scaled(mask: Band, length: int, whole: int) -> Band:
    return Band(_side(mask.left, length, whole), _side(mask.right, length, whole))


def _side(width: int | None, length: int, whole: int) -> int | None:
    """A window stays one, however small the sequence."""
    return width if not width else (1 if width > 0 else -1) * max(1, abs(width) * length // whole)
