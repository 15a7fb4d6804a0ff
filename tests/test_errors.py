"""The wording of errors: what was found, what was needed, what to do, and every refusal with its number."""

import pickle
import textwrap

import pytest

from sp import errors
from sp.errors import (
    InputError,
    RankLostError,
    RankMismatchError,
    Refusal,
    RuleError,
    SpError,
    StrategyError,
    UnsupportedModelError,
    ValidationError,
)

KINDS = [StrategyError, InputError, RankMismatchError, UnsupportedModelError, ValidationError, RuleError]
KINDS += [RankLostError]
FLIP = Refusal(
    node="flip_1: aten.flip(mul_3, [1])",
    source="model.py:41, in forward: x = x.flip(1)",
    why="dim 1 of mul_3 is the sequence, and flip moves tokens across ranks",
    remedy="flip the input before the model",
)
SORT = Refusal(node="sort_2: aten.sort(relu)", source="model.py:52", why="no rule", remedy="sp.register_rule")


@pytest.mark.parametrize("kind", [SpError, *KINDS])
def test_error_says_found_needed_remedy_in_this_order(kind: type[SpError]) -> None:
    assert str(kind("found")) == "found"
    assert str(kind("found", needed="this")) == "found\n  needed: this"
    assert str(kind("found", remedy="do that")) == "found\n  remedy: do that"
    assert str(kind("found", needed="this", remedy="do that")) == "found\n  needed: this\n  remedy: do that"


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_an_sp_error_and_a_value_error(kind: type[SpError]) -> None:
    assert issubclass(kind, SpError)
    assert issubclass(kind, ValueError)
    for other in KINDS:
        assert other is kind or not issubclass(kind, other)


def test_no_error_is_left_untested() -> None:
    defined = {value for value in vars(errors).values() if isinstance(value, type)}
    assert {kind for kind in defined if issubclass(kind, SpError)} == {SpError, *KINDS}


def test_refusals_are_numbered_and_all_there() -> None:
    error = UnsupportedModelError("2 nodes cannot be spread", refusals=[FLIP, SORT], remedy="see each")
    assert error.refusals == (FLIP, SORT)
    assert str(error) == textwrap.dedent("""\
        2 nodes cannot be spread
          1. flip_1: aten.flip(mul_3, [1])
            at:     model.py:41, in forward: x = x.flip(1)
            why:    dim 1 of mul_3 is the sequence, and flip moves tokens across ranks
            remedy: flip the input before the model
          2. sort_2: aten.sort(relu)
            at:     model.py:52
            why:    no rule
            remedy: sp.register_rule
          remedy: see each""")


def test_no_refusals_are_no_list() -> None:
    error = UnsupportedModelError("found", needed="this")
    assert error.refusals == ()
    assert str(error) == "found\n  needed: this"


@pytest.mark.parametrize("kind", KINDS)
def test_error_survives_the_way_between_processes(kind: type[SpError]) -> None:
    """A rank's error reaches the parent process by pickle; it must not turn into a TypeError there."""
    error = kind("found", needed="this", remedy="do that")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)


def test_refusals_survive_the_way_between_processes() -> None:
    error = UnsupportedModelError("found", refusals=[FLIP, SORT])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.refusals) == (str(error), error.refusals)
