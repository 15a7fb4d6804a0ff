"""The loop of torchtitan's users: it trains, saves, and goes on from there on another mesh as if it had not stopped."""

import importlib
import re
import subprocess
from pathlib import Path

import pytest

from tests.examples.test_examples import ROOT, python

SMALL = ["--length", "65", "--layers", "2", "--width", "32", "--every", "2", "--dtype", "float32"]


def titan_loop(dp: int, ranks: int, steps: int, folder: Path) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(dp * ranks)]
    mesh = ["--dp", str(dp), "--sp", str(ranks), "--steps", str(steps), "--folder", folder]
    return python(*launcher, "examples/titan_loop.py", *SMALL, *mesh)


def steps_of(done: subprocess.CompletedProcess[str]) -> dict[int, tuple[str, ...]]:
    """Loss, norm and learning rate by the number of the step."""
    assert done.returncode == 0, done.stderr
    pattern = r"step +(\d+)  loss ([\d.]+)  norm ([\d.]+)  lr (\S+) +[\d,]+ tokens/s  \d+ MiB"
    found = [re.fullmatch(pattern, line) for line in done.stdout.splitlines()]
    assert all(found), done.stdout
    return {int(match[1]): match.groups()[1:] for match in found if match}


@pytest.mark.slow
def test_it_trains_and_saves(tmp_path: Path) -> None:
    assert list(steps_of(titan_loop(1, 2, 2, tmp_path))) == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def close(found: dict[int, tuple[str, ...]], right: dict[int, tuple[str, ...]]) -> bool:
    pairs = [(float(a), float(b)) for step in right for a, b in zip(found[step], right[step], strict=True)]
    return found.keys() == right.keys() and all(abs(a - b) <= 2e-4 * b for a, b in pairs)


@pytest.mark.slow
def test_it_goes_on_where_it_stopped_on_another_mesh(tmp_path: Path) -> None:
    """Two steps on 2 x 2 and two more on 1 x 3 are four on one rank."""
    right = steps_of(titan_loop(1, 1, 4, tmp_path / "single"))
    found = steps_of(titan_loop(2, 2, 2, tmp_path / "moved")) | steps_of(titan_loop(1, 3, 4, tmp_path / "moved"))
    assert list(right) == [1, 2, 3, 4]
    assert close(found, right)


@pytest.mark.parametrize(
    ("rank", "complaint"),
    [
        ("", "start it with torchrun: torchrun --nproc-per-node 4 examples/titan_loop.py --dp 2 --sp 2"),
        ("0", "--rows must be a multiple of 6, replicas times parts"),
    ],
)
def test_it_says_how_it_is_started(
    rank: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr("sys.argv", ["titan_loop.py", "--dp", "3"])
    if rank:
        monkeypatch.setenv("RANK", rank)
    else:
        monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit):
        importlib.import_module("titan_loop").parse()
    assert complaint in capsys.readouterr().err
