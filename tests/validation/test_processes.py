"""`validate=True` on real ranks: each process has its own world of threads beside the default group."""

import pytest
import torch

import sp
from sp.models import GPT, GPTConfig
from sp.passes import rule_table
from sp.passes.rules import unary


def train(wrong: bool) -> str:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Flip()) if wrong else Named()
    patch = pytest.MonkeyPatch()
    if wrong:
        patch.setitem(rule_table.TABLE, "aten.flip", lambda case: unary(case, case.placement))
    try:
        parallel = sp.parallelize(model, compile=False, validate=True)
        x = torch.ones(2, 9, 4) if wrong else torch.zeros(2, 9, dtype=torch.long)
        parallel(x)
    except sp.SpError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        patch.undo()
    return "ran"


class Flip(torch.nn.Module):
    def forward(self, x):
        return x.flip(1)


class Named(GPT):
    def __init__(self) -> None:
        super().__init__(GPTConfig(vocab_size=61, max_length=32, layers=1, heads=2, width=16))


def test_an_exact_model_runs(world2):
    assert world2.run(train, False) == ["ran", "ran"]


def test_a_wrong_one_is_an_error_on_all_ranks(world2):
    one, other = world2.run(train, True)
    assert one.startswith("ValidationError: the transformed Sequential does not compute what the model computes")
    assert one == other
