"""Which captures a model keeps: those that ran last, the same on all ranks."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.shelf import take
from sp.testing import run_ranks


def capture(name: str, agreed: bool = True, estimates: str | None = None) -> Any:
    return SimpleNamespace(name=name, agreed=agreed, used=0, estimates=estimates)


def names(captures: list[Any]) -> str:
    return "".join(each.name for each in captures)


@pytest.mark.filterwarnings("ignore:a model keeps")
def test_what_was_not_called_for_longest_goes() -> None:
    a, b, c, d, e = (capture(name) for name in "abcde")
    held: list[Any] = []
    for one in (a, b, a, c):
        held += [] if one in held else [one]
        assert take(held, one, keep=3) is one
    assert names(held) == "abc"
    take([*held], b, keep=3)
    held.append(d)
    take(held, d, keep=3)
    assert names(held) == "bcd", "a was called before c, and b after it"
    held.append(e)
    take(held, e, keep=3)
    assert names(held) == "bde"


@pytest.mark.filterwarnings("ignore:a model keeps")
def test_what_was_never_agreed_on_does_not_count() -> None:
    held = [capture("a"), capture("x", agreed=False), capture("y", agreed=False), capture("z", agreed=False)]
    for name in "bc":
        held.append(capture(name))
        take(held, held[-1], keep=2)
    assert names(held) == "yzbc"


@pytest.mark.filterwarnings("ignore:a model keeps")
def test_the_first_tells_why_the_strategy_was_chosen() -> None:
    held = [capture("a", estimates="why")]
    for name in "bcd":
        held.append(capture(name))
        take(held, held[-1], keep=2)
        assert held[0].estimates == "why"


def test_it_says_so_when_one_goes() -> None:
    held: list[Any] = [capture("a")]
    take(held, held[0], keep=1)
    held.append(capture("b"))
    with pytest.warns(UserWarning, match=r"a model keeps 1 captures, and has dropped.*each turn captures it anew"):
        take(held, held[1], keep=1)
    assert names(held) == "b"


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.e, self.by = nn.Embedding(13, 8), 1.0

    def forward(self, ids: Tensor) -> Tensor:
        return self.e(ids) * self.by


def test_ranks_drop_alike_and_capture_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks, one of which has captures that the others have not: they agree on every call, and compute right."""
    monkeypatch.setattr(take, "__defaults__", (2,))
    models, ids = [Scaled() for _ in range(3)], torch.arange(12).view(1, 12)
    expected = Scaled()(ids)

    def rank(group: Any) -> tuple[list[float], int]:
        model, errors = models[group.rank()], list[float]()
        parallel = sp.parallelize(model, mesh=group, compile=False)
        if group.rank() == 1:
            model.by = 7.0
            parallel.capture((ids,), {})
        for by in (1.0, 2.0, 3.0, 1.0, 7.0, 3.0, 2.0):
            model.by = by
            errors.append(float((parallel(ids) - by * expected).detach().abs().max()))
        return errors, sum(each.agreed for each in parallel.executables)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run_ranks(3, rank)
    assert found == [([0.0] * 7, 2)] * 3
