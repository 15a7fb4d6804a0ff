"""Bands: the definition, the conjunction and the names, over every band with sides up to 4."""

from itertools import product

import pytest

from sp.layout import Run
from sp.mask import CAUSAL, FULL, Band

SIDES = [None, *range(-4, 5)]
BANDS = [Band(left, right) for left, right in product(SIDES, SIDES)]
POSITIONS = range(7)


def seen(band: Band) -> set[tuple[int, int]]:
    return {(i, j) for i, j in product(POSITIONS, POSITIONS) if band.visible(i, j)}


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_query_sees_from_left_of_it_to_right_of_it(band: Band) -> None:
    left = len(POSITIONS) if band.left is None else band.left
    right = len(POSITIONS) if band.right is None else band.right
    assert seen(band) == {(i, j) for i in POSITIONS for j in POSITIONS if j in range(i - left, i + right + 1)}


def test_named_bands() -> None:
    assert len(seen(FULL)) == len(POSITIONS) ** 2
    assert seen(CAUSAL) == {(i, j) for i in POSITIONS for j in range(i + 1)}
    # transformers' sliding window of 3 counts the query itself: i - j < 3.
    assert seen(Band(2, 0)) == {(i, j) for i, j in seen(CAUSAL) if i - j < 3}


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_and_sees_what_both_see(band: Band) -> None:
    for other in BANDS:
        assert seen(band & other) == seen(band) & seen(other)
        assert band & other == other & band
    assert band & FULL == band & band == band


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_parse_reads_what_str_writes(band: Band) -> None:
    assert Band.parse(str(band)) == band


def test_str_names_bands_apart() -> None:
    assert len({str(band) for band in BANDS}) == len(BANDS)
    shown = [FULL, CAUSAL, Band(127, 0), Band(4, 4), Band(-1, None), Band(None, -1)]
    assert [str(band) for band in shown] == [
        "full",
        "causal",
        "window(127, 0)",
        "window(4, 4)",
        "window(-1, )",
        "window(, -1)",
    ]


@pytest.mark.parametrize(
    "text", ["", "Causal", "window", "window(1)", "window(1, 2, 3)", "window(a, 0)", "window(1, 0) "]
)
def test_parse_refuses_what_str_never_writes(text: str) -> None:
    with pytest.raises(AssertionError, match="not a mask"):
        Band.parse(text)


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_pairs_are_counted(band: Band) -> None:
    for start, stride, length, keys in product((0, 1, 5), (1, 2, 5), (0, 1, 4), (0, 1, 3, 9)):
        queries = Run(start, stride, length)
        assert band.pairs(queries, keys) == sum(band.visible(i, j) for i in queries.positions for j in range(keys))


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_an_empty_band_shows_nothing_anywhere(band: Band) -> None:
    assert band.is_empty == (not any(band.visible(20, j) for j in range(41)))
