"""Pieces are integers, so everything is tried: every band of every small tile, and wide ones by area."""

from collections import Counter
from collections.abc import Iterator

import pytest

from sp.plan import Tile, trim
from sp.runtime.kernels import pieces
from sp.runtime.kernels.pieces import cut, shape


def trimmed_tiles(largest: int) -> Iterator[Tile]:
    """Every tile up to `largest` × `largest`, away from the origin."""
    sizes = range(1, largest + 1)
    for rows, columns in ((r, c) for r in sizes for c in sizes):
        bounds = (None, *range(-rows, columns + 1))
        tiles = {trim(Tile(3, 3 + rows, 5, 5 + columns, low, up)) for low in bounds for up in bounds}
        yield from (tile for tile in tiles if tile)


def seen(tiles: tuple[Tile, ...]) -> Counter[tuple[int, int]]:
    """How often each pair is visible in one of the tiles."""
    return Counter((x, y) for t in tiles for x in range(t.q0, t.q1) for y in range(t.k0, t.k1) if t.visible(x, y))


@pytest.mark.parametrize(("least", "block"), [(1, 1), (1, 2), (3, 3), (64, 256)])
def test_each_visible_pair_is_in_one_piece(least: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A band with one bound is cut into at most three pieces, one with two into blocks of rows."""
    monkeypatch.setattr(pieces, "LEAST", least)
    monkeypatch.setattr(pieces, "BLOCK", block)
    cut.cache_clear()
    for tile in trimmed_tiles(7):
        found = cut(tile)
        assert seen(found) == seen((tile,)), tile
        if tile.lower is None or tile.upper is None:
            assert len(found) <= (1 if tile.kind == "full" else 3)
            assert all(shape(piece) != "band" for piece in found), tile
        else:
            assert all(piece.q1 - piece.q0 <= block or block > 7 for piece in found), tile
    cut.cache_clear()


@pytest.mark.parametrize("rows", [1, 2, 3, 9])
def test_blocks_leave_out_what_sees_nothing(rows: int) -> None:
    for lower in (None, -3, 2):
        for upper in (None, -2, 5):
            tile = Tile(2, 9, 1, 7, lower, upper)
            found = pieces.blocks(tile, rows)
            assert seen(found) == seen((tile,))
            assert all(0 < piece.q1 - piece.q0 <= rows for piece in found)


def test_shapes_are_what_the_kernel_computes() -> None:
    rules = {"full": lambda _x, _y: True, "causal": lambda x, y: y <= x, "anticausal": lambda x, y: y >= x}
    for piece in (piece for tile in trimmed_tiles(6) for piece in cut(tile)):
        rows, columns = range(piece.q0, piece.q1), range(piece.k0, piece.k1)
        rule = rules.get(shape(piece))
        assert rule is None or seen((piece,)) == Counter(
            (x, y) for x in rows for y in columns if rule(x - piece.q0, y - piece.k0)
        )
        assert shape(piece) in ("full", "band") or len(rows) == len(columns)


def test_what_strategies_need_is_one_piece() -> None:
    assert cut(Tile(0, 8, 0, 8, None, 0)) == (Tile(0, 8, 0, 8, None, 0),)
    assert cut(Tile(1, 8, 0, 7, None, 0)) == (Tile(1, 8, 0, 7, None, 0),)  # striped, the strict mask
    assert cut(Tile(0, 8, 4, 8)) == (Tile(0, 8, 4, 8),)


@pytest.mark.parametrize("width", [1, 64, 511, 512, 1024, 4096])
def test_a_window_costs_no_more_than_its_width(width: int) -> None:
    tile = trim(Tile(0, 1 << 14, 0, 1 << 14, 1 - width, 0))
    assert tile is not None
    area = sum((piece.q1 - piece.q0) * (piece.k1 - piece.k0) for piece in cut(tile))
    assert area <= tile.area * 1.25 + tile.q1 * pieces.LEAST
    assert len(cut(tile)) <= tile.q1 / pieces.LEAST


def test_a_planted_overlap_is_seen() -> None:
    tile = Tile(0, 4, 0, 4, None, 0)
    assert seen((tile, Tile(3, 4, 0, 1))) != seen((tile,))
    assert seen((Tile(1, 4, 0, 3, None, 0),)) != seen((tile,))
