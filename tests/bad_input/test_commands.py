"""Every command that is typed wrong ends with its exit code and some lines, never with a traceback."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from sp.cli import main
from tests.bad_input.commands import FILES, FOLDERS, QUICK, SLOW, Typed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("typed")
    for name, text in FILES.items():
        (found / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    for name in FOLDERS:
        (found / name).mkdir()
    return found


def named(cases: list[Typed]) -> list[object]:
    return [pytest.param(*case, id=" ".join(case[0])) for case in cases]


def hold(words: tuple[str, ...], code: int, says: str, folder: Path) -> None:
    result = CliRunner().invoke(main, [word.replace("FOLDER", str(folder)) for word in words], prog_name="sp")
    assert isinstance(result.exception, SystemExit), f"{result.exception!r}"
    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("words", "code", "says"), named(QUICK))
def test_typed_wrong(words: tuple[str, ...], code: int, says: str, folder: Path) -> None:
    hold(words, code, says, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "code", "says"), named(SLOW))
def test_found_wrong_on_the_way(words: tuple[str, ...], code: int, says: str, folder: Path) -> None:
    hold(words, code, says, folder)
