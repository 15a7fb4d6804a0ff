"""The command line as a person types it: what is printed, in two lines where it is an error, and the exit code."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from torch import nn

import sp
from sp.cli import main
from sp.cli.words import Setting, Tokens, World

LLAMA = ("sp.models:Llama", "--set", "layers=1")

TEXT = """
import torch
from torch import nn

class Mixes(nn.Linear):
    def forward(self, x):
        return super().forward(x).transpose(1, 2).reshape(x.shape)

class Plain(nn.Linear):
    pass

mixes = Mixes(4, 4), (torch.zeros(1, 8, 4),)
named = Plain(4, 4), (), {"input": torch.zeros(1, 8, 4)}
unknown = Plain(4, 4)
number = 3

def needy(a, b):
    return Plain(a, b)
"""


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words, prog_name="sp")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "user_models.py"
    path.write_text(TEXT)
    return str(path)


def test_inspect_prints_the_report() -> None:
    result = run("inspect", *LLAMA, "--world", "4", "--strategy", "zigzag", "--length", "1k")
    assert result.exit_code == 0, result.output
    assert "zigzag = zigzag layout + ring transport" in result.output
    assert "1,024 tokens, 256 on each rank" in result.output


def test_inspect_shows_the_parts_asked_for() -> None:
    result = run("inspect", *LLAMA, "--show", "plan", "--show", "captured", "--show", "graph", "--show", "inserted")
    assert result.exit_code == 0, result.output
    for words in ("rank 7", "scaled_dot_product_attention", "sp.attention", "inserted op"):
        assert words in result.output
    assert "pass " not in result.output, "the report was not asked for"


def test_inspect_as_json() -> None:
    facts = json.loads(run("inspect", *LLAMA, "--json").output)
    assert (facts["world"], facts["length"]) == (8, 64)


def test_inspect_writes_the_page_and_a_picture(tmp_path: Path) -> None:
    page, picture = tmp_path / "report.html", tmp_path / "work.svg"
    words = ("--html", str(page), "--svg", str(picture), "--picture", "work", "--json")
    result = run("inspect", *LLAMA, "--strategy", "zigzag", *words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["strategy"]["name"] == "zigzag"
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert "zigzag on 8 ranks" in page.read_text("utf-8")
    assert picture.read_text("utf-8").startswith("<svg")
    assert f"written: {page}, {page.stat().st_size:,} bytes" in result.stderr


def test_inspect_says_where_it_cannot_write(tmp_path: Path) -> None:
    result = run("inspect", *LLAMA, "--html", str(tmp_path / "nowhere" / "report.html"))
    assert result.exit_code == 1
    assert "nowhere" in result.stderr
    assert "No such file or directory" in result.stderr


@pytest.mark.parametrize("by", ["type", "file"])
def test_a_transformers_model_without_memory_for_its_parameters(by: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "hidden_size": 8192, "architectures": ["LlamaForCausalLM"]}')
    reference = "hf:llama" if by == "type" else str(config)
    result = run("inspect", reference, "--set", "num_hidden_layers=1", "--set", "num_attention_heads=64")
    assert result.exit_code == 0, result.output
    assert "64" in result.output.split("layers.0.self_attn")[1].splitlines()[0]


def test_a_model_of_a_file_brings_its_call(file: str) -> None:
    result = run("inspect", f"{file}:named", "--world", "2")
    assert result.exit_code == 0, result.output
    assert "input (global, dim 1)" in result.output


def test_a_refused_model_ends_with_1_and_its_line(file: str) -> None:
    result = run("inspect", f"{file}:mixes")
    assert result.exit_code == 1
    assert "user_models.py" in result.stderr
    assert "remedy:" in result.stderr


WRONG = [
    (("inspect", "sp.models:Llama", "--strategy", "stripped"), "there is no strategy 'stripped'; needed: one of"),
    (("inspect", "nowhere:Model"), "nowhere:Model is not found: No module named 'nowhere'"),
    (("inspect", "sp.models:Lama"), "has no attribute 'Lama'"),
    (("inspect", "sp.models"), "sp.models names no model"),
    (("inspect", "sp.models:Llama", "--set", "depth=3"), "cannot be configured"),
    (("inspect", "hf:lama"), "hf:lama is no model type of transformers"),
    (("inspect", "hf:llama", "--set", "layers=2"), "hf:llama cannot be configured: it has no layers"),
    (("inspect", "FILE:unknown"), "how Plain is called is not known"),
    (("inspect", "FILE:number"), "is a int, no nn.Module and no maker of one"),
    (("inspect", "FILE:needy"), "takes ['a', 'b']"),
    (("check", "hf:llama"), "parameters, and the model is run on this machine's CPU; needed: at most 500,000,000"),
    (("plan", "sp.models:Llama", "--length", "1M", "--machine", "abacus"), "there is no machine 'abacus'"),
]


@pytest.mark.parametrize(
    ("words", "message"), WRONG, ids=lambda case: " ".join(case) if isinstance(case, tuple) else ""
)
def test_errors_take_two_lines_and_end_with_2(words: tuple[str, ...], message: str, file: str) -> None:
    result = run(*(word.replace("FILE", file) for word in words))
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert message in lines[0]
    assert len(lines) <= 2
    assert all(line.startswith("  remedy: ") for line in lines[1:])


@pytest.mark.parametrize("words", [("--length", "many"), ("--length", "0"), ("--world", "2x2x2"), ("--set", "layers")])
def test_numbers_that_cannot_be_read(words: tuple[str, ...]) -> None:
    result = run("inspect", "sp.models:Llama", *words)
    assert result.exit_code == 2
    assert repr(words[1]) in result.stderr


def test_check_ends_with_0_where_all_is_exact() -> None:
    result = run("check", *LLAMA, "--strategy", "ring", "--world", "2", "--lengths", "6", "--json")
    assert result.exit_code == 0, result.output
    (facts,) = json.loads(result.output)
    assert facts["exact"]
    assert facts["lengths"] == [6]


def test_check_ends_with_1_where_anything_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    check = sp.check  # looked up when it is first asked for

    def wrong(model: nn.Module, *args: Any, **_others: Any) -> object:
        report = check(model, *args, world_size=2, lengths=(4,))
        return replace(report, rows=(replace(report.rows[0], verdict="too far"), *report.rows[1:]))

    monkeypatch.setattr("sp.api.check", wrong)
    result = run("check", *LLAMA)
    assert result.exit_code == 1
    assert "NOT exact" in result.output


def test_plan_weighs_the_strategies() -> None:
    result = run("plan", *LLAMA, "--length", "1M", "--world", "64", "--machine", "h200")
    assert result.exit_code == 0, result.output
    assert "1,048,576 tokens on 64 ranks of h200" in result.output
    facts = json.loads(run("plan", *LLAMA, "--length", "1M", "--world", "8x8", "--strategy", "usp", "--json").output)
    assert [each["strategy"] for each in facts["estimates"]] == ["usp"]


@pytest.mark.slow
def test_bench_times_the_plain_model_first() -> None:
    words = ("--length", "32", "--repeats", "1", "--no-compile", "--strategy", "striped")
    result = run("bench", *LLAMA, *words, "--json")
    assert result.exit_code == 0, result.output
    plain, striped = json.loads(result.output)
    assert (plain["strategy"], striped["strategy"]) == (None, "striped")
    assert len(striped["seconds"]) == 1


def test_demo_shows_equal_losses() -> None:
    result = run("demo", "--steps", "2", "--length", "65")
    assert result.exit_code == 0, result.output
    assert "the same, up to rounding" in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0, result.output
    assert "_SP_COMPLETE" in result.output


@pytest.mark.parametrize(("option", "known"), [("--strategy", "zigzag"), ("--machine", "h100")])
def test_the_shell_completes_names(option: str, known: str) -> None:
    ending = {"COMP_WORDS": f"sp inspect sp.models:Llama {option} {known[0]}", "COMP_CWORD": "4"}
    result = CliRunner().invoke(main, prog_name="sp", env={"_SP_COMPLETE": "bash_complete", **ending})
    assert known in result.output


def test_colours_are_for_terminals_and_not_without_them() -> None:
    assert "\x1b[" not in run("inspect", "nowhere:Model").stderr
    coloured = CliRunner().invoke(main, ["inspect", "nowhere:Model"], color=True)
    assert "\x1b[31m" in coloured.stderr
    plain = CliRunner().invoke(main, ["inspect", "nowhere:Model"], color=True, env={"NO_COLOR": "1"})
    assert "\x1b[" not in plain.stderr


def test_what_the_field_writes_for_numbers() -> None:
    tokens, world, setting = Tokens(), World(), Setting()
    read = [tokens.convert(text, None, None) for text in ("4096", "128k", "1M", "10,000", "1_000", "2G")]
    assert read == [4096, 131072, 1048576, 10000, 1000, 2 << 30]
    assert [world.convert(text, None, None) for text in ("8", "2x4")] == [8, (2, 4)]
    assert setting.convert("gqa=repeat_kv", None, None) == ("gqa", "repeat_kv")
    assert setting.convert("rope=1e4", None, None) == ("rope", 10000.0)
    with pytest.raises(click.BadParameter, match="write name=value"):
        setting.convert("two words=3", None, None)
