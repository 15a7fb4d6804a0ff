"""Crossings against the definition: whose row holds which position, counted out for every pair of layouts."""

from itertools import product

import pytest

from sp.crossing import Part, count_rows, crossings, meet, unpacked
from sp.layout import LAYOUTS, Run, contiguous_parts, find_layout


def cut_unevenly(length: int, world: int) -> str:
    """Contiguous parts that no layout deals: a rank without tokens, one with most."""
    sizes = [0, length - world + 1, *[1] * (world - 2), *[0]][:world]
    sizes[-1] += length - sum(sizes)
    return contiguous_parts(sizes)


def names(length: int, world: int) -> list[str]:
    nested = ["striped/2", "zigzag/2"] if world % 2 == 0 else []
    return [*LAYOUTS, "striped:2", "striped:3", *nested, cut_unevenly(length, world)]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6])
def test_every_position_goes_where_it_belongs(world: int) -> None:
    for length in (world, world + 1, 13, 24):
        if length < world:
            continue
        for old, new in product(names(length, world), repeat=2):
            wanted = {rank: find_layout(new).positions(length, rank, world) for rank in range(world)}
            got = {rank: [-1] * len(wanted[rank]) for rank in range(world)}
            for sender, receiver in product(range(world), repeat=2):
                held = find_layout(old).positions(length, sender, world)
                for rows, rows_to in crossings(
                    Part(old, 0, length, length), Part(new, 0, length, length), 0, world, sender, receiver
                ):
                    assert count_rows(rows) == count_rows(rows_to) == len(held[rows])
                    assert set(got[receiver][rows_to]) == {-1}, "each position comes from one rank, once"
                    got[receiver][rows_to] = held[rows]
            assert got == wanted, (old, new, length)


@pytest.mark.parametrize("stretch", [(0, 12, 13), (1, 12, 13), (3, 5, 13), (12, 1, 13), (0, 0, 13)])
def test_a_stretch_and_an_offset(stretch: tuple[int, int, int]) -> None:
    start, length, total = stretch
    for old, new, offset in product(LAYOUTS, LAYOUTS, (0, 1, 4)):
        a, b = Part(old, start, length, total), Part(new, start + offset, length, total + 5)
        found: set[tuple[int, int]] = set()
        for sender, receiver in product(range(3), repeat=2):
            mine, theirs = (
                [p for p in find_layout(part.layout).positions(part.total, rank, 3) if 0 <= p - part.start < length]
                for part, rank in ((a, sender), (b, receiver))
            )
            for rows, rows_to in crossings(a, b, offset, 3, sender, receiver):
                found |= set(zip(mine[rows], theirs[rows_to], strict=True))
        assert found == {(p, p + offset) for p in range(start, start + length)}, (old, new, offset)


def test_runs_meet_where_their_positions_do() -> None:
    runs = [Run(start, stride, length) for start, stride, length in product(range(4), (1, 2, 3, 4, 6), (1, 2, 5))]
    for a, b in product(runs, repeat=2):
        common = meet(a, b)
        assert [*(common.positions if common else ())] == sorted(set(a.positions) & set(b.positions)), (a, b)


def test_a_buffer_holds_the_pieces_one_after_another() -> None:
    pieces = [(slice(0, 3), slice(1, 6, 2)), (slice(7, 8), slice(0, 1))]
    assert [*unpacked(pieces)] == [(slice(0, 3), slice(1, 6, 2)), (slice(3, 4), slice(0, 1))]


def test_what_stays_is_not_sent() -> None:
    """From contiguous to zigzag in a world of two, half of the first rank's tokens stay."""
    a, b = Part("contiguous", 0, 16, 16), Part("zigzag", 0, 16, 16)
    kept = [sum(count_rows(rows) for rows, _ in crossings(a, b, 0, 2, rank, rank)) for rank in range(2)]
    assert kept == [4, 4]
