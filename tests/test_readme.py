"""The README's code runs, and prints what the README says."""

import inspect
import re

import torch

import sp
from sp.models import Llama, LlamaConfig
from tests.documents import ROOT, blocks

README = ROOT / "README.md"


def python() -> list[str]:
    return blocks(README, "python")


def test_first_screen_runs(capsys):
    space: dict[str, object] = {}
    exec(python()[0], space)
    assert "striped layout + ring transport" in capsys.readouterr().out
    model = space["model"]
    assert isinstance(model, sp.ParallelModule)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_shown_report_is_what_four_ranks_print():
    ids = torch.zeros(1, 4096, dtype=torch.long)
    report = str(sp.inspect(Llama(LlamaConfig(layers=2)), (ids,), {"labels": ids}, world_size=4))
    shown = next(block for block in blocks(README, "") if block.startswith("strategy"))
    missing = [line for line in shown.splitlines() if line not in report.splitlines()]
    assert not missing


def test_strategies_block_prints_the_shown_grids(capsys):
    exec(python()[0] + python()[1])
    printed = capsys.readouterr().out.splitlines()
    shown = next(block for block in blocks(README, "") if block.startswith("contiguous"))
    missing = [line for line in shown.splitlines() if line not in printed]
    assert not missing


def test_every_option_of_the_interface_block_exists():
    names = set(re.findall(r"^    (\w+)=", python()[2], re.MULTILINE))

    assert names == set(inspect.signature(sp.parallelize).parameters) - {"model"}


def test_check_block_runs(capsys):
    exec(python()[0] + python()[1] + python()[3])
    assert "verdict        exact: all" in capsys.readouterr().out
