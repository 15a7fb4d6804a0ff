"""An inventory lists what torch's own walks list, in their order."""

import pytest
import torch
from torch import nn

from sp.inventory import Inventory
from sp.models import GPT, GPTConfig


def tangled() -> nn.Module:
    """A module, a parameter and a buffer that stand in two places each; places without anything."""
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))})
    model["c"], model.none = model["b"], None
    model.register_module("nothing", None)
    model["d"] = nn.Linear(2, 2)
    model["d"].weight = model["b"][1].weight
    model["d"].register_buffer("mean", model["b"][0].running_mean)
    model.register_buffer("absent", None)
    return model


MODELS = {
    "tangled": tangled,
    "gpt": lambda: GPT(GPTConfig(layers=2, heads=2, width=8)),
    "one": lambda: nn.LayerNorm(3),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 2, enable_nested_tensor=False),
    "nothing": nn.Identity,
}


@pytest.mark.parametrize("name", MODELS)
def test_all_things_once_and_in_order(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    held = Inventory.of(model)
    assert [(path.removesuffix("."), module) for path, module in held.modules] == list(model.named_modules())
    for mine, right in ((held.parameters, model.named_parameters()), (held.buffers, model.named_buffers())):
        assert [(name, id(value)) for name, value in mine.items()] == [(name, id(value)) for name, value in right]
