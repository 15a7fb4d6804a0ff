"""Strategies: the table is consistent, and an unknown name is answered with the known ones."""

import re

import pytest

import sp.errors
from sp.errors import StrategyError
from sp.layout import LAYOUTS
from sp.strategy import STRATEGIES, Strategy, find_strategy


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_is_found_by_its_name(name: str) -> None:
    strategy = find_strategy(name)
    assert strategy.name == name
    assert strategy.layout in LAYOUTS
    assert strategy.transport


def test_the_papers_strategies_are_pairs_of_layout_and_transport() -> None:
    assert STRATEGIES["ring"] == Strategy("ring", layout="contiguous", transport="ring")
    assert STRATEGIES["striped"] == Strategy("striped", layout="striped", transport="ring")
    assert STRATEGIES["zigzag"] == Strategy("zigzag", layout="zigzag", transport="ring")


def test_no_two_strategies_are_the_same_pair() -> None:
    pairs = {(strategy.layout, strategy.transport) for strategy in STRATEGIES.values()}
    assert len(pairs) == len(STRATEGIES)


def test_a_strategy_of_two_axes_is_placed_on_a_mesh() -> None:
    """Only an all-to-all nests the layout; what takes one axis stays as it is."""
    assert STRATEGIES["usp"].on((2, 4)) == Strategy("usp", "striped/4", "alltoall", ("ring", "ulysses"), (2, 4))
    assert STRATEGIES["usp_zigzag"].on((2, 4)).on((3, 2)).layout == "zigzag/2"
    assert STRATEGIES["double_ring"].on((2, 4)).layout == "striped"
    assert STRATEGIES["striped"].on((8,)) is STRATEGIES["striped"]
    with pytest.raises(AssertionError, match="usp on a mesh of shape"):
        STRATEGIES["usp"].on((8,))


def test_stripes_have_a_width() -> None:
    wide, double = find_strategy("striped:64"), find_strategy("double_ring:8").on((2, 4))
    assert wide == Strategy("striped:64", "striped:64", "ring")
    assert (double.layout, double.shape) == ("striped:8", (2, 4))
    for name, message in [
        ("striped:0", "'striped:0' names no width of stripes"),
        ("striped:x", "'striped:x' names no width of stripes"),
        ("ring:64", r"ring has no stripes whose width could be '64'\n.*striped:64, double_ring:64"),
        ("usp:64", "usp has no stripes whose width could be '64'"),
        ("stripped:64", r"no strategy 'stripped:64'\n.*one of: allgather"),
    ]:
        with pytest.raises(StrategyError, match=message):
            find_strategy(name)


@pytest.mark.parametrize("name", ["stripped", "Ring", "", " ring", "contiguous"])
def test_unknown_strategy_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(StrategyError) as caught:
        find_strategy(name)
    found, needed = str(caught.value).splitlines()
    assert repr(name) in found
    assert re.findall(r"\w+", needed.removeprefix("  needed: one of: ")) == sorted(STRATEGIES)


def test_the_docs_of_errors_quote_the_message() -> None:
    with pytest.raises(StrategyError) as caught:
        find_strategy("stripped")
    assert sp.errors.__doc__
    for line in str(caught.value).splitlines():
        assert line in sp.errors.__doc__
