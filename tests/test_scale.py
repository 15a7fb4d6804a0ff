"""Thousands of ranks and millions of tokens: the same program, the same work of the compiler, a report one can read.

Counted are calls of functions, not seconds: `python -m benchmarks worlds` and `scaling` measure."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType

import pytest
import torch

import sp
from sp.models import Llama, LlamaConfig
from sp.show import Report

SP = str(Path(sp.__file__).parent)
FAR = 10_485_760
AXES = {name: each for name, each in sp.STRATEGIES.items() if each.axes}


def inspect(strategy: str, world: int, length: int, layers: int = 1) -> Report:
    """Of a Llama as wide as 405B, on the meta device."""
    with torch.device("meta"):
        sizes = LlamaConfig(128256, layers, heads=128, kv_heads=8, width=16384, mlp_ratio=3.25)
        model, ids = Llama(sizes).bfloat16(), torch.zeros(1, length, dtype=torch.long)
    size = (world // 2, 2) if strategy in AXES else world
    return sp.inspect(model, (ids,), {"labels": ids}, strategy=strategy, world_size=size)


@cache
def first(strategy: str) -> Report:
    return inspect(strategy, 2, 4096)


@pytest.mark.parametrize(("world", "length"), [(64, FAR), (1024, 4096 + 1)])
@pytest.mark.parametrize("strategy", ["striped", "zigzag"])
def test_the_program_depends_on_neither_ranks_nor_tokens(strategy: str, world: int, length: int) -> None:
    found = inspect(strategy, world, length)
    assert found.program.digest() == first(strategy).program.digest()
    assert found.graph_table() == first(strategy).graph_table()


def test_on_two_axes_it_depends_on_the_inner_one_alone() -> None:
    graphs = {str(inspect("usp", world, length).program.graph) for world, length in ((4, 4096), (1024, FAR))}
    assert len(graphs) == 1


def calls(run: Callable[[], object]) -> Counter[str]:
    """How often each function of sp is entered."""
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SP):
            counts[frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    gc.collect()
    gc.disable()  # what is freed when is no work of the compiler
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
        gc.enable()
    return counts


def test_the_compiler_works_as_much_for_4096_ranks_as_for_8() -> None:
    inspect("striped", 8, 4096)  # caches
    few, many = (calls(lambda world=world: inspect("striped", world, 4096)) for world in (8, 4096))
    assert few == many
    assert sum(few.values()) > 1000


def test_a_report_takes_time_of_the_ranks() -> None:
    """It has one number for each of them, and no step of theirs."""
    reports = {world: inspect("zigzag", world, FAR) for world in (64, 1024)}
    few, many = (sum(calls(lambda report=report: str(report)).values()) for report in reports.values())
    assert many < 16 * few
    grids = [calls(lambda report=report: report.plan_grid()) for report in reports.values()]
    assert sum(grids[1].values()) < 17 * sum(grids[0].values())


def test_a_report_of_1024_ranks_can_be_read() -> None:
    report = inspect("zigzag", 1024, FAR)
    text, grid = str(report), report.plan_grid()
    assert "world         1024 ranks" in text
    assert "10,485,760 tokens, 10,240 on each rank" in text
    assert "0.0977 / 0.0977 / 0.0977 %" in text
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) < 300
    assert len(grid.splitlines()) == 17
    assert max(map(len, grid.splitlines())) < 400
    assert len(report.as_dict()["attentions"][0]["area"]) == 1024


def test_passes_are_linear_in_layers() -> None:
    """What a layer adds does not grow with those that are there."""
    inspect("striped", 8, 4096)
    one, two, three = (
        sum(calls(lambda layers=layers: inspect("striped", 8, 4096, layers)).values()) for layers in (1, 2, 3)
    )
    assert three - two == pytest.approx(two - one, rel=0.02)
