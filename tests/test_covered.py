"""Coverage is measured in whatever ranks run in; `make coverage` fails below 95 % of lines or 90 % of branches."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests import covered
from tests.documents import ROOT

# Each function of sp is called at one place of its own.
SCRIPT = """
import multiprocessing
import subprocess
import sys
import time

from sp.layout import contiguous_parts, find_layout
from sp.mask import CAUSAL
from sp.testing import run_processes, run_ranks

def thread(group):
    return find_layout("zigzag").runs(9, group.rank(), 2)

def process():
    return contiguous_parts((3, 4))

def until_terminated(ready):
    str(CAUSAL)
    ready.set()
    time.sleep(60)

if __name__ == "__main__":
    run_ranks(2, thread)
    run_processes(2, process)
    subprocess.run([sys.executable, "-c", "from sp.mask import CAUSAL; CAUSAL & CAUSAL"], check=True)
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    last = spawn.Process(target=until_terminated, args=(ready,))
    last.start()
    ready.wait()
    last.terminate()
    last.join()
"""
CALLED = {
    "_zigzag": "a rank that is a thread",
    "contiguous_parts": "a rank that is a process",
    "Band.__and__": "a Python that was started",
    "Band.__str__": "a process that was ended by SIGTERM",
}


def report(lines: float, branches: float) -> dict[str, Any]:
    """As `coverage json` writes it, of 1,000 lines and 200 branches."""
    counts = {"num_statements": 1000, "num_branches": 200}
    return {"totals": {"covered_lines": 10 * lines, "covered_branches": 2 * branches, **counts}}


@pytest.mark.parametrize(
    ("lines", "branches", "code"),
    [(95, 90, 0), (100, 100, 0), (94.9, 100, 1), (100, 89.5, 1), (30, 2, 1)],
)
def test_lines_and_branches_are_each_held(
    lines: float, branches: float, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps(report(lines, branches)))
    assert covered.main(str(path)) == code
    said = capsys.readouterr().out.splitlines()
    assert [line.endswith("NOT ENOUGH") for line in said] == [lines < 95, branches < 90]
    assert f"of 200 branches covered, {branches:.2f} %; needed: 90 %" in said[1]


def test_nothing_measured_is_not_enough(tmp_path: Path) -> None:
    path = tmp_path / "coverage.json"
    path.write_text('{"totals": {"covered_lines": 0, "num_statements": 0, "covered_branches": 0, "num_branches": 0}}')
    assert covered.main(str(path)) == 1


def test_the_command_ends_with_the_check() -> None:
    lines = (ROOT / "Makefile").read_text().split("\ncoverage:")[1].split("\n\n")[0].splitlines()
    assert lines[-1].endswith("-m tests.covered out/coverage.json")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]
    assert settings["run"]["branch"], "or there are no branches to hold"
    assert "fail_under" not in settings["report"], "it would stop the command before the check, by a sum of both"


@pytest.mark.slow
def test_lines_of_threads_and_of_processes_are_seen(tmp_path: Path) -> None:
    """By the project's own settings, files of sp that nothing imports among them."""
    pytest.importorskip("coverage")
    (tmp_path / "script.py").write_text(SCRIPT)
    settings = f"--rcfile={ROOT / 'pyproject.toml'}"
    for words in (["run", settings, "script.py"], ["combine", settings], ["json", settings, "-o", "found.json"]):
        done = subprocess.run(
            [sys.executable, "-m", "coverage", *words],
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    files = {Path(name).relative_to(ROOT / "sp").as_posix(): each for name, each in found["files"].items()}
    functions = {**files["layout.py"]["functions"], **files["mask.py"]["functions"]}
    missed = [where for name, where in CALLED.items() if not functions[name]["summary"]["covered_lines"]]
    assert not missed
    assert {path.relative_to(ROOT / "sp").as_posix() for path in (ROOT / "sp").rglob("*.py")} == files.keys()
    assert covered.main(str(tmp_path / "found.json")) == 1
