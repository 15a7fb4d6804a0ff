"""Every step of `sessions` once; random sessions are for `python -m tests.fuzz.sessions`."""

import pytest

from tests.fuzz.sessions import LATER, STEPS, Session, attempt, random_session


@pytest.mark.parametrize("number", range(3))
def test_each_step_is_exact(number: int) -> None:
    steps = STEPS[number * 5 : number * 5 + 5]
    assert attempt(Session(steps, ("striped", "zigzag", "ulysses")[number], (3,), number)) == ""


@pytest.mark.slow
def test_steps_whose_gradients_are_averaged_later() -> None:
    assert attempt(Session(LATER[3:7], "striped", (3,), 1, later=True)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_random_sessions(number: int) -> None:
    assert attempt(random_session(number)) == ""
