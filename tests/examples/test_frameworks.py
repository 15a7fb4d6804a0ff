"""The examples of frameworks under torchrun, tiny: the trained model has the same loss over the ranks and alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "needs", "ranks"),
    [
        ("with_accelerate", "accelerate", ["2"]),
        *(
            pytest.param(f"with_{name}", needs, ["4", "--replicas", "2"], marks=pytest.mark.slow)
            for name, needs in [("trainer", "accelerate"), ("accelerate", "accelerate"), ("fabric", "lightning_fabric")]
        ),
    ],
)
def test_the_trained_model_has_the_same_loss_alone(example, needs, ranks):
    pytest.importorskip("transformers")
    pytest.importorskip(needs)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks[0]]
    words = [*torchrun, f"examples/{example}.py", "--steps", "2", "--length", "101", *ranks[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(" alone: the same")
