"""A few of the attentions of `python -m tests.fuzz.attentions`."""

import pytest

from tests.fuzz.attentions import attempt


@pytest.mark.parametrize("number", [3, *(pytest.param(number, marks=pytest.mark.slow) for number in range(10, 20))])
def test_attentions(number: int) -> None:
    assert [(world, text) for world, text in attempt(number, 4) if text] == []
