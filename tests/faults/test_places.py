"""A rank that fails in the middle of other things than a plain step: a text, a trace, a compiled block, a loader."""

from __future__ import annotations

import re

import pytest

from tests.faults.test_faults import check_survivors
from tests.faults.worlds import Fault, Way, outcomes

GENERATE = Way("striped", (3,), does="generate")
TIMEOUT_S = 20.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]


@pytest.mark.parametrize("at", [2, 40], ids=["prompt", "token"])
@pytest.mark.parametrize("kind", ["kill", "raise"])
def test_while_a_text_is_generated(kind: str, at: int) -> None:
    fault = Fault(kind, "forward", TIMEOUT_S, at=at)
    for text in check_survivors(outcomes(GENERATE, fault), fault, TIMEOUT_S):
        assert ": attention forward, " in text if at == 2 else "call " in text


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_under_a_trace(where: str) -> None:
    fault = Fault("kill", where, TIMEOUT_S)
    check_survivors(outcomes(Way("zigzag", (3,), does="trace"), fault), fault, TIMEOUT_S)


@pytest.mark.parametrize("kind", ["kill", "raise"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_in_a_compiled_block(kind: str, where: str) -> None:
    fault = Fault(kind, where, TIMEOUT_S, together=True)
    check_survivors(outcomes(Way("striped", (2,), compile="blocks"), fault), fault, TIMEOUT_S)


def test_the_worker_of_a_loader_that_is_killed() -> None:
    fault = Fault("worker", "call", 60.0, together=True)
    for text in check_survivors(outcomes(Way("ring", (3,), bare=True, does="load"), fault), fault, TIMEOUT_S):
        assert re.search(r"\n  rank 1: (RuntimeError: DataLoader worker \(pid|ConnectionResetError|EOFError)", text)
