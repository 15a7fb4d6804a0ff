"""Lanes: lines that do not run through each other."""

from sp.show.pictures.lanes import MOST_LANES, give_lanes


def test_a_chain_is_one_line() -> None:
    assert give_lanes([(), (0,), (1,), (2,)], [False] * 4) == [0, 0, 0, 0]


def test_a_value_that_is_read_later_keeps_its_lane() -> None:
    #      a        b reads a   c reads b   d reads a and c
    assert give_lanes([(), (0,), (1,), (0, 2)], [False] * 4) == [0, 1, 1, 0]


def test_silent_rows_have_none() -> None:
    assert give_lanes([(), (), (0,)], [False, True, False]) == [0, -1, 0]


def test_no_two_values_share_a_lane_while_both_are_needed() -> None:
    reads = [(), (), (0,), (1, 2), (0,), (3,), (1, 4), (5, 6)]
    lanes = give_lanes(reads, [False] * len(reads))
    last = [max([row for row, operands in enumerate(reads) if value in operands], default=value) for value in range(8)]
    for first in range(8):
        for second in range(first + 1, 8):
            if last[first] > second:
                assert lanes[first] != lanes[second]


def test_of_many_values_the_last_lane_takes_the_rest() -> None:
    many = MOST_LANES + 5
    lanes = give_lanes([*[()] * many, tuple(range(many))], [False] * (many + 1))
    assert max(lanes) == MOST_LANES - 1
    assert lanes[: MOST_LANES - 1] == list(range(MOST_LANES - 1))
