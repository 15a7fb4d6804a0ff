"""Relative errors, and what is not finite."""

import math

import pytest
import torch

from sp.testing.compare import relative_error

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("found", "right", "error"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 4.0], [0.0, 4.0], 0.75),
        ([1.0], [0.0], 1.0),  # absolute, where there is nothing to be relative to
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([INF, -INF, 2.0], [INF, -INF, 1.0], 1.0),  # an infinity does not hide what is beside it
        ([NAN, 1.0], [1.0, 1.0], INF),
        ([1.0, 1.0], [NAN, 1.0], INF),
        ([INF], [-INF], INF),
        ([INF], [1.0], INF),
        ([1.0], [INF], INF),
    ],
)
def test_relative_error(found, right, error):
    assert relative_error(torch.tensor(found), torch.tensor(right)) == error


def test_below_the_floor_errors_are_measured_against_it():
    assert relative_error(torch.tensor([2e-9]), torch.tensor([1e-9]), floor=1e-3) == pytest.approx(1e-6)


def test_shapes_must_agree():
    with pytest.raises(AssertionError, match=r"\(2,\) is not \(3,\)"):
        relative_error(torch.ones(2), torch.ones(3))
