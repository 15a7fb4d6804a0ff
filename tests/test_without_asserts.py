"""Under `python -O`, which leaves out asserts, training is exact and what is refused is refused: no check that protects
people is an assert."""

import ast
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.documents import ROOT
from tests.passes.test_verify import PLANTED

SAYS = {
    "a model that mixes tokens": "UnsupportedModelError: ",
    "a hook of backward": "UnsupportedModelError: 'head' of the model has a backward hook",
    "other contents": "RankMismatchError: the ranks disagree about the contents of the inputs",
    "other parameters": "RankMismatchError: the ranks disagree about what parameters and buffers hold",
    "a token that no table has": "InputError: ",
    "a strategy without a name": "StrategyError: the strategy is a int",
    "shards of another length": "AssertionError: rank ",
    "the seat of another rank": "AssertionError: made for rank ",
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, "-O", "-m", "tests.without_asserts"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not said["asserts"]
    return said


@pytest.mark.slow
def test_training_is_exact(found: dict[str, Any]) -> None:
    assert len(found["training"]) == 10
    assert max(found["training"].values()) < 1e-12


@pytest.mark.slow
def test_what_is_refused_is_refused(found: dict[str, Any]) -> None:
    assert found["refusals"].keys() == SAYS.keys()
    for name, messages in found["refusals"].items():
        assert messages
        assert all(message.startswith(SAYS[name]) for message in messages), (name, messages)


@pytest.mark.slow
def test_mistakes_in_a_program_are_found(found: dict[str, Any]) -> None:
    assert found["planted"].keys() == PLANTED.keys()
    for name, message in found["planted"].items():
        assert message.startswith("AssertionError: "), (name, message)
        assert PLANTED[name][1] in message


def test_what_a_pass_leaves_is_judged_by_raises() -> None:
    """In `check` and in verify, an assert would be no more than a comment under `python -O`."""
    left = list[str]()
    for path in sorted((ROOT / "sp" / "passes").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            if path.name in ("verify.py", "manager.py") or function.name == "check":
                asserts = [node for node in ast.walk(function) if isinstance(node, ast.Assert)]
                left += [f"{path.name}:{node.lineno}" for node in asserts]
    assert not left
