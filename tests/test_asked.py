"""What is handed over by mistake is named at once, by every way in."""

import pytest
import torch

import sp
from sp.models import GPT, GPTConfig

IDS = torch.zeros(1, 16, dtype=torch.long)
WAYS_IN = (sp.parallelize, sp.inspect, sp.check, lambda model: sp.estimate(model, 64, 2, "h100"))


@pytest.mark.parametrize("way_in", WAYS_IN)
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (GPT, r"the model is the class GPT\n  needed: an nn.Module\n  remedy: make one: GPT\(…\)"),
        (torch.relu, "the model is a builtin_function_or_method\n  needed: an nn.Module"),
        ("gpt", "the model is a str\n  needed: an nn.Module"),
    ],
)
def test_what_is_no_model(way_in, model, said):
    with pytest.raises(sp.StrategyError, match=said):
        way_in(model)


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        (IDS, None, r"args cannot be a Tensor\n  needed: a tuple of what the model is called with, as \(ids,\)"),
        ({"ids": IDS}, None, "args cannot be a dict\n  needed: a tuple"),
        ((IDS,), (IDS,), "kwargs cannot be a tuple\n  needed: a dict by the names of arguments"),
    ],
)
def test_what_is_no_call(args, kwargs, said):
    model = GPT(GPTConfig(layers=1, heads=2, width=16))
    ways = (
        lambda: sp.inspect(model, args, kwargs),
        lambda: sp.check(model, args, kwargs),
        lambda: sp.estimate(model, 64, 2, "h100", args=args, kwargs=kwargs),
        lambda: sp.parallelize(model, example_args=args, example_kwargs=kwargs),
    )
    for way in ways:
        with pytest.raises(sp.InputError, match=said):
            way()


def test_a_strategy_that_is_no_name():
    with pytest.raises(sp.StrategyError, match=r"the strategy is a int\n  needed: a name, as 'striped', in sp"):
        sp.parallelize(GPT(GPTConfig(layers=1, heads=2, width=16)), 4)


def test_a_call_without_tensors():
    with pytest.raises(sp.InputError, match=r"the call passes no tensor\n  needed: one that holds a sequence"):
        sp.inspect(GPT(GPTConfig(layers=1, heads=2, width=16)), ([[1, 2, 3]],))
