"""Random attention written out by hand, and random masks of data: outputs and every gradient, on worlds of threads."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sp.errors import UnsupportedModelError
from sp.passes import pipeline
from sp.passes.bind import bind
from sp.program import Program
from sp.runtime.scores import BoundScore
from sp.runtime.world import seat_name
from sp.testing.ranks import run_ranks
from tests.passes.exact import STRATEGIES, results, single
from tests.passes.programs import program_of
from tests.passes.random_forms import Forms, Generator, named
from tests.passes.scores import Attentions, inputs, readings, rewritten
from tests.passes.test_random_scores import Generator as OfMasks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there is something to skip in short sequences."""
    monkeypatch.setattr(BoundScore, "bind", staticmethod(partial(BoundScore.bind, block=4)))


def given(length: int, seed: int = 0) -> list[Tensor]:
    found = inputs(length, seed)
    for name in ("x", "bias"):
        found[name] = found[name].double().requires_grad_()
    return list(found.values())


def captured(model: nn.Module, seed: int) -> Program:
    return program_of(model, *given(16), passes=pipeline(), strategy=STRATEGIES[seed % len(STRATEGIES)])


def compare(model: nn.Module, program: Program, seed: int) -> None:
    for length, world in ((13, 2), (26, 3)):
        _compare(model, program, given(length, seed), world)


def _compare(model: Any, program: Program, args: Sequence[Tensor], world: int) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        right = single(model, args)

    def rank(group: dist.ProcessGroup) -> tuple[list[Tensor], list[Tensor]]:
        mine = [x.detach().requires_grad_(x.requires_grad) for x in args]
        return results(list(bind(program, seat_name(group.group_name))(*mine)), model, mine)

    for outputs, gradients in run_ranks(world, rank):
        for found, expected in zip((*outputs, *gradients), (*right[0], *right[1]), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def check_forms(seed: int, count: int) -> int:
    """How many are accepted; each of those is what the model computes."""
    generator, done = Generator(seed), 0
    for name, form in named([generator.form() for _ in range(count)], seed).items():
        model = Forms({name: form}).double()
        try:
            program = captured(model, seed + done)
        except UnsupportedModelError:
            continue
        compare(model, program, seed)
        done += 1
    return done


def check_masks(seed: int, count: int) -> int:
    generator = OfMasks(seed)
    makers = {f"seed {seed}, mask {number}": generator.mask() for number in range(count)}
    _, program = rewritten(makers)
    found = readings(makers, program)
    makers = {name: maker for name, maker in makers.items() if not found[name].startswith("refused")}
    model = Attentions(makers).double()
    compare(model, captured(model, seed), seed)
    return len(makers)


def test_random_forms() -> None:
    assert check_forms(3, 6) > 3


def test_random_masks() -> None:
    assert check_masks(2, 12) > 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_random_forms(seed: int) -> None:
    assert check_forms(seed, 12) > 7


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_random_masks(seed: int) -> None:
    assert check_masks(seed, 12) > 7
