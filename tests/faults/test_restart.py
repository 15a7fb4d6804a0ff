"""After a rank has died torchrun starts all again, and losses go on bit for bit; no checkpoint is lost by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.faults.saving import POINTS, WORLD, resumed, save_and_be_killed, weights

ROOT = Path(__file__).parents[2]
TINY = ["--every", "2", "--length", "64", "--layers", "1", "--width", "32"]


@pytest.mark.parametrize("point", POINTS)
def test_a_rank_that_is_killed_while_it_saves_leaves_a_whole_checkpoint(point: str, tmp_path: Path) -> None:
    codes = save_and_be_killed(tmp_path, point)
    assert codes[POINTS[point][0]] == -9
    assert len(codes) == WORLD
    step, found = resumed(tmp_path)
    assert step == (3 if point == "before an old one is removed" else 2)
    assert torch.equal(found, weights(step))
    assert not list(tmp_path.glob("*.part"))


def run(ranks: int, folder: Path, *options: str) -> list[tuple[int, int, float]]:
    """examples/restart.py under torchrun; the attempt, the step and the loss of each line, in order."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "2"]
    command = [sys.executable, *launcher, "examples/restart.py", "--folder", str(folder), *TINY, *options]
    # Without it, ranks of the second attempt meet those of the first in the store (pytorch/pytorch#135712).
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment = {**os.environ, **settings}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (folder / "losses.jsonl").read_text().splitlines())
    return [(line["attempt"], line["step"], line["loss"]) for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_losses_after_a_restart_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    right = [loss for _, _, loss in run(2, tmp_path / "undisturbed", "--steps", "8")]
    assert len(set(right)) == len(right) == 8
    killed = run(2, tmp_path / "killed", "--steps", "6", "--kill", "1", "4")
    assert [line[:2] for line in killed] == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 4), (1, 5), (1, 6)]
    assert all(loss == right[step - 1] for _, step, loss in killed), "bit for bit"
    more = run(3, tmp_path / "killed", "--steps", "8")[len(killed) :]  # three ranks go on where two have stopped
    assert [line[:2] for line in more] == [(0, 7), (0, 8)]
    assert [loss for *_, loss in more] == pytest.approx(right[6:], rel=1e-5)
