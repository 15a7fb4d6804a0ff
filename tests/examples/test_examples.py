"""The examples as a user runs them, tiny: they end with 0, say what they promise, and can fail."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.bytes_data import PythonSources
from examples.bytes_report import BOUND, Run, table, verdicts

ROOT = Path(__file__).parents[2]
TINY = ["--steps", "3", "--length", "101", "--layers", "1", "--width", "32", "--heads", "2", "--timeout", "120"]


def python(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


def check_training(done: subprocess.CompletedProcess[str], strategies: list[str], world: int, out: Path) -> None:
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for strategy in strategies:
        assert any(line.startswith(f"{strategy} over {world} ranks: 3 steps, losses equal") for line in lines)
        assert f"{strategy:<14}: 100%" in done.stderr  # the progress bar, with its figures
    assert "tokens/s]" in done.stderr
    assert (out / "loss_curves.png").read_bytes().startswith(b"\x89PNG")


def test_train_bytes_spawns_ranks_and_equals_the_single_device(tmp_path):
    done = python("examples/train_bytes.py", *TINY, "--no-compile", "--out", tmp_path)
    check_training(done, ["striped", "ring", "zigzag"], 2, tmp_path)
    assert done.stdout.splitlines()[0].endswith("not compiled: --no-compile")


@pytest.mark.slow
def test_train_bytes_runs_under_torchrun(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--no-compile", "--model", "gpt", "--strategies", "zigzag", "--out", tmp_path]
    done = python(*torchrun, "examples/train_bytes.py", *TINY, *options)
    check_training(done, ["zigzag"], 2, tmp_path)


def test_train_bytes_says_that_there_is_no_compiler(tmp_path):
    done = python(
        "examples/train_bytes.py", *TINY, "--world", "1", "--strategies", "striped", "--out", tmp_path, CXX="none"
    )
    check_training(done, ["striped"], 1, tmp_path)
    assert "not compiled: this machine lacks a C++ compiler" in done.stdout.splitlines()[0]


SHARDED = ["--steps", "2", "--length", "101", "--layers", "2", "--width", "32"]


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [[], pytest.param([*TORCHRUN, "4"], marks=pytest.mark.slow)])
def test_train_sharded_writes_a_checkpoint_that_a_plain_model_reads(launcher):
    done = python(*launcher, "examples/train_sharded.py", *SHARDED)
    assert done.returncode == 0, done.stderr
    assert [line.split("|")[4].strip() for line in done.stdout.splitlines()[2:6]] == ["25%"] * 4
    assert done.stdout.splitlines()[-1].endswith(", the same")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [[], pytest.param([*TORCHRUN, "2"], marks=pytest.mark.slow)])
def test_long_run_has_equal_losses_on_all_ranks(launcher):
    done = python(*launcher, "examples/long_run.py", "--length", "301", "--width", "32", "--layers", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["step 0", "step 1", "301 tokens on 2 ranks"]
    assert lines[-1].endswith("equal on all ranks")
    assert "NOT" not in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--strategies", "spiral"], "unknown strategy 'spiral', known are ring, striped, zigzag"),
        (["--world", "0"], "--world must be at least 1"),
        (["--compile"], "--compile needs a C++ compiler"),
    ],
)
def test_train_bytes_refuses_wrong_arguments(arguments, complaint, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr("sys.argv", ["train_bytes.py", *arguments])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SystemExit) as end:
        importlib.import_module("train_bytes").main()
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.slow
def test_train_bytes_compiled(tmp_path):
    done = python("examples/train_bytes.py", *TINY, "--compile", "--strategies", "striped", "--out", tmp_path)
    check_training(done, ["striped"], 2, tmp_path)
    assert done.stdout.splitlines()[0].endswith(", compiled")


def test_hf_llama_equals_the_single_device():
    pytest.importorskip("transformers")
    done = python("examples/hf_llama.py", "--length", "65")
    assert done.returncode == 0, done.stderr
    assert "equal within 1e-05 on every rank" in done.stdout
    assert "model.layers.{0…3}.self_attn" in done.stdout  # the report
    assert not done.stderr


@pytest.mark.slow
def test_generate_equals_the_single_device():
    pytest.importorskip("transformers")
    done = python("examples/generate.py", "--prompt", "65", "--new", "5")
    assert done.returncode == 0, done.stderr
    assert "striped over 2 ranks, 65 + 5 tokens: the same tokens on every rank as on one device" in done.stdout
    assert not done.stderr


def test_a_difference_beyond_the_bound_is_a_failure():
    single = Run("single device", losses=[5.0, 4.0], norms=[1.0, 1.0], seconds=[2.0, 1.0])
    within = Run("striped", losses=[5.0, 4.0 * (1 + BOUND / 2)], norms=[1.0, 1.0], seconds=[2.0, 1.0])
    loss_off = Run("ring", losses=[5.0 * (1 + 2 * BOUND), 4.0], norms=[1.0, 1.0], seconds=[2.0, 1.0])
    norm_off = Run("zigzag", losses=[5.0, 4.0], norms=[1.0, 1 - 2 * BOUND], seconds=[2.0, 1.0])
    lines, equal = verdicts(single, [within], 2)
    assert equal
    assert lines == ["striped over 2 ranks: 2 steps, losses equal to single device within 2.0e-04"]
    for off in (loss_off, norm_off):
        lines, equal = verdicts(single, [within, off], 2)
        assert not equal
        assert "NOT equal" in lines[1]
        assert off.name in table(single, [within, off], 100)


def test_not_a_number_is_a_failure():
    single = Run("single device", losses=[5.0, 4.0], norms=[1.0, 1.0])
    assert not verdicts(single, [Run("ring", losses=[5.0, float("nan")], norms=[1.0, 1.0])], 2)[1]
    both = Run("single device", losses=[5.0, float("nan")], norms=[1.0, 1.0])
    assert not verdicts(both, [both], 2)[1]


def test_batches_are_text_and_the_same_for_the_same_step():
    first, again = PythonSources().batch(3, 2, 500), PythonSources().batch(3, 2, 500)
    assert first.shape == (2, 500)
    assert (first == again).all()
    assert not (first == PythonSources().batch(4, 2, 500)).all()
    bytes(first[0].tolist()).decode("utf-8", errors="ignore").encode("ascii", errors="ignore").index(b" ")


@pytest.mark.slow
def test_packed_and_padded_documents_equal_them_one_by_one():
    done = python("examples/packed_documents.py", "--documents", "4", "--longest", "61")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "equal within 1e-05 on every rank"
    assert "documents (position_ids)" in done.stdout
    assert done.stdout.count("padding (attention_mask)") == 2
