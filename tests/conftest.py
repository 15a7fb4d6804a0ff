"""Fixtures for every test: worlds of processes that start once, and golden texts."""

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sp.testing.ranks import ProcessWorld
from tests.captures import OneCapture

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew instead of comparing")


@pytest.fixture(scope="session")
def world2() -> Iterator[ProcessWorld]:
    """Two processes with the gloo default group; they start at the first `run` and live through the session."""
    with ProcessWorld(2) as world:
        yield world


@pytest.fixture(scope="session")
def world4() -> Iterator[ProcessWorld]:
    """Four processes; see `world2`."""
    with ProcessWorld(4) as world:
        yield world


@pytest.fixture
def one_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are threads share their captures, see `tests.captures`."""
    monkeypatch.setattr("sp.executable._captured", OneCapture())


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares the text with tests/golden/<name>.txt; `make golden` writes the files."""
    return lambda name, text: _check(request, GOLDEN / f"{name}.txt", text)


@pytest.fixture
def golden_page(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden_page("docs/ops.md", text)`: the same for a page that people read."""
    return lambda path, text: _check(request, GOLDEN.parent.parent / path, text)


def _check(request: pytest.FixtureRequest, path: Path, text: str) -> None:
    text = text.rstrip("\n") + "\n"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    elif difference := _difference(path, text):
        pytest.fail(f"{difference}\nIf the new text is right: make golden", pytrace=False)


def _difference(path: Path, text: str) -> str:
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(old.splitlines(), text.splitlines(), str(path), "now", lineterm="")
    return "\n".join(lines)
