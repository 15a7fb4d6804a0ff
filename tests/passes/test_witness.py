"""Witness: what a trace cannot hold is refused, and the model is as it was."""

import linecache
import random

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.passes.constants import refuse_unreal
from sp.passes.witness import Witness
from tests.passes.programs import IDS_BS, Small, program_of


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return -g


def refused(forward, model: nn.Module | None = None) -> sp.UnsupportedModelError:
    with pytest.raises(sp.UnsupportedModelError) as caught:
        program_of(model or Small(forward), IDS_BS)
    return caught.value


def test_a_gradient_of_ones_own():
    """Used, or only returned."""
    for forward in (lambda m, ids: m.l(Reverse.apply(m.e(ids))), lambda m, ids: Reverse.apply(m.e(ids))):
        (refusal,) = refused(forward).refusals
        assert refusal.node == "Reverse.apply"
        assert "test_witness.py" in refusal.source
        assert "its own backward is lost" in refusal.why
        assert "torch.library.custom_op" in refusal.remedy


def test_a_hook_on_a_gradient():
    def forward(m: Small, ids: Tensor) -> Tensor:
        x = m.e(ids)
        x.register_hook(lambda g: 2 * g)
        return x

    (refusal,) = refused(forward).refusals
    assert refusal.node == "Tensor.register_hook"
    assert "a hook on a gradient is no part of a graph" in refusal.why


def test_inference_mode_inside_and_around():
    def forward(m: Small, ids: Tensor) -> Tensor:
        with torch.inference_mode():
            return m.l(m.e(ids))

    (refusal,) = refused(forward).refusals
    assert refusal.node == "torch.inference_mode"
    model = Small(lambda m, ids: m.l(m.e(ids)))
    with torch.inference_mode():
        program_of(model, IDS_BS)


class Remembers(Small):
    def __init__(self, change) -> None:
        super().__init__(lambda m, ids: m.l(m.e(ids)))
        self.calls, self.seen, self.cache = 0, [1], {"a": 1}
        self.register_buffer("mean", torch.zeros(4))
        self.change = change

    def forward(self, ids: Tensor) -> Tensor:
        self.change(self)
        return super().forward(ids)


CHANGES = {
    "calls": lambda m: setattr(m, "calls", m.calls + 1),
    "seen": lambda m: m.seen.append(2),
    "cache": lambda m: m.cache.update(a=2),
    "mean": lambda m: setattr(m, "mean", m.mean + 1),
    "fresh": lambda m: setattr(m, "fresh", torch.ones(1)),
    "training": lambda m: setattr(m, "training", not m.training),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_attribute_that_forward_changes(name):
    model = Remembers(CHANGES[name])
    mean = model.mean
    error = refused(None, model)
    assert [refusal.node for refusal in error.refusals] == [f"Remembers.{name}"]
    assert "a graph would keep what it was at the first call" in str(error)
    assert (model.calls, model.seen, model.cache, model.training) == (0, [1], {"a": 1}, True)
    assert model.mean is mean
    assert not hasattr(model, "fresh")


def test_the_line_is_that_of_the_attribute():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            self.calls += 1
            return x * self.calls

    with pytest.raises(sp.UnsupportedModelError) as caught:
        program_of(Counts(), torch.ones(2, 9, 4))
    place = caught.value.refusals[0].source
    line = int(place.split(":")[1].split(" ")[0])
    assert linecache.getline(__file__, line).strip() == "self.calls += 1"


def test_what_is_put_back_is_nothing_to_refuse():
    def change(m: Remembers) -> None:
        m.seen.append(2)
        m.seen.pop()
        m.calls = 0

    program_of(Remembers(change), IDS_BS)


def test_pythons_random_numbers():
    (refusal,) = refused(lambda m, ids: m.e(ids) * random.random()).refusals
    assert "Python's random module" in refusal.why


def test_an_error_of_the_model_comes_first():
    model = Remembers(None)

    def call() -> None:
        with Witness(model):
            model.calls = 3
            raise KeyError("the model's own")

    with pytest.raises(KeyError, match="the model's own"):
        call()
    assert model.calls == 0


def test_a_constant_without_values():
    def forward(m: Small, ids: Tensor) -> Tensor:
        return torch.func.grad(lambda y: y.pow(3).mean())(m.e(ids))

    assert "the graph holds constants that do not exist" in str(refused(forward))
    refuse_unreal(program_of(lambda m, ids: m.e(ids) * torch.tensor([2.0]), IDS_BS).graph_module)
