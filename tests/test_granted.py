"""Models that change after their first call: the next call computes what the changed model computes."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

import sp
from sp.devices import without_numbers
from sp.granted import Granted, model_state
from sp.inventory import Inventory
from sp.testing.compare import relative_error

D, VOCAB = 8, 13


class Mode(Enum):
    ONCE, TWICE = 1, 2


@dataclass(slots=True)
class Args:
    factor: float = 1.0
    mode: Mode = Mode.ONCE


def scaled(by: float) -> Callable[[Tensor], Tensor]:
    return lambda x: by * x


class Block(nn.Module):
    offset = 0.25

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.drop = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Dropout(0.5)
        self.gain, self.window, self.act = 1.0, 4, F.gelu
        self.args, self.sizes = Args(), SimpleNamespace(inner=SimpleNamespace(shift=0.5))
        self.kept = [torch.ones(D, dtype=torch.float64)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.norm(x)).chunk(3, -1))
        at = torch.arange(x.shape[1])
        mask = (at[:, None] >= at) & (at[:, None] - at < self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(1)
        y = y * self.args.factor + self.sizes.inner.shift * self.kept[0].to(y.dtype) + self.offset
        return x + self.gain * self.drop(self.act(y)) * (2 if self.args.mode is Mode.TWICE else 1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.e, self.head = nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB, bias=False)
        self.blocks, self.config = nn.ModuleList(Block() for _ in range(2)), Config()
        self.table = torch.ones(D, dtype=torch.float64)  # not registered
        self.register_buffer("scale", torch.ones(D))
        self.head.weight = self.e.weight
        self.double().eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.e(ids) * self.scale + self.table
        for block in self.blocks:
            x = block(x)
        x = x.tanh() if self.config.squash else x
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Config:
    squash = False

    def __init__(self) -> None:
        self.squash, self.names = False, {"a": 1}


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64))


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down, self.up = base, parameter(2, D), parameter(3 * D, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


def assign(model: Model) -> None:
    """Every name gets a parameter of its own, tied ones too."""
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def resize(model: Model) -> None:
    model.e = nn.Embedding(VOCAB + 4, D, dtype=torch.float64)
    model.head.weight = model.e.weight


def swap(model: Model) -> None:
    first, second = model.blocks
    model.blocks[0], model.blocks[1] = second, first


CHANGES: dict[str, Callable[[Model], object]] = {
    "other blocks": swap,  # with the tensors that they hold in lists
    "untied": lambda model: setattr(model.head, "weight", parameter(VOCAB, D)),
    "untied by assign": assign,
    "resized": resize,
    "no bias": lambda model: setattr(model.blocks[0].qkv, "bias", None),
    "an attribute": lambda model: setattr(model.blocks[1], "gain", 3.0),
    "a window": lambda model: setattr(model.blocks[1], "window", 2),
    "a function": lambda model: setattr(model.blocks[1], "act", F.relu),
    "torch's own attribute": lambda model: setattr(model.blocks[1].norm, "eps", 0.3),
    "a config": lambda model: setattr(model.config, "squash", True),
    "a hook": lambda model: model.blocks[0].register_forward_hook(lambda module, given, x: 2 * x),
    "an adapter": lambda model: setattr(model.blocks[0], "qkv", Lora(model.blocks[0].qkv)),
    "parametrized": lambda model: parametrize.register_parametrization(model.blocks[0].qkv, "weight", Double()),
    "one more block": lambda model: model.blocks.append(Block().double().eval()),
    "one block less": lambda model: model.blocks.pop(0),
    "one block twice": lambda model: model.blocks.__setitem__(1, model.blocks[0]),
    "a dataclass": lambda model: setattr(model.blocks[1].args, "factor", 3.0),
    "a choice": lambda model: setattr(model.blocks[1].args, "mode", Mode.TWICE),
    "a namespace in another": lambda model: setattr(model.blocks[1].sizes.inner, "shift", 2.0),
    "a tensor in a list": lambda model: model.blocks[1].kept.__setitem__(0, torch.full((D,), 2.0, dtype=torch.float64)),
    "an option of a function": lambda model: setattr(model.blocks[1], "act", partial(F.gelu, approximate="tanh")),
    "another function": lambda model: setattr(model.blocks[1], "act", lambda x: x * x),
    "a class": lambda model: setattr(type(model.blocks[1]), "offset", 2.0 + type(model.blocks[1]).offset),
    "a patched forward": lambda model: setattr(model.blocks[0], "forward", torch.sin),
    "other dtype": lambda model: (model.float(), setattr(model, "table", torch.ones(D))),
}
FOLLOWED: dict[str, Callable[[Model], object]] = {
    "other values": lambda model: [value.data.mul_(1.5) for value in model.parameters()],
    "other parameters": lambda model: setattr(model.blocks[0].qkv, "weight", parameter(3 * D, D)),
    "another buffer": lambda model: setattr(model, "scale", torch.full((D,), 2.0, dtype=torch.float64)),
    "another tensor": lambda model: setattr(model, "table", torch.full((D,), 2.0, dtype=torch.float64)),
    "frozen": lambda model: model.e.weight.requires_grad_(False),
}


def run(call: nn.Module, model: Model) -> dict[str, Tensor]:
    model.zero_grad()
    loss = call(torch.arange(22).view(2, 11) % VOCAB)
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **{name: grad.clone() for name, grad in grads.items()}}


class Made(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float() * torch.full((x.shape[1], 1), 1 / 3)


def test_another_default_dtype() -> None:
    parallel, x, before = sp.parallelize(Made(), compile=False), torch.ones(2, 5, 3), torch.get_default_dtype()
    parallel(x)
    try:
        torch.set_default_dtype(torch.float64)
        found, right = parallel(x), Made()(x)
    finally:
        torch.set_default_dtype(before)
    assert found.dtype == right.dtype == torch.float64
    assert torch.equal(found, right)


def test_what_a_function_closes_over() -> None:
    model = Model()
    model.blocks[0].act = scaled(3.0)
    before = model_state(model)
    model.blocks[0].act = scaled(3.0)
    assert model_state(model) == before
    model.blocks[0].act = scaled(2.0)
    assert model_state(model) != before


@pytest.mark.parametrize("name", [*CHANGES, *FOLLOWED])
def test_the_model_as_it_is_now(name: str) -> None:
    model = Model()
    parallel = sp.parallelize(model, compile=False)
    run(parallel, model)
    (CHANGES | FOLLOWED)[name](model)
    found, right = run(parallel, model), run(model, model)
    assert found.keys() == right.keys()
    tolerance = 1e-5 if name == "other dtype" else 1e-12
    assert all(relative_error(found[key], right[key]) < tolerance for key in right)
    assert len(parallel.executables) == (2 if name in CHANGES else 1)
    run(parallel, model)
    assert len(parallel.executables) == (2 if name in CHANGES else 1)


@pytest.mark.parametrize("name", [*CHANGES, *FOLLOWED])
def test_what_is_kept_of_a_state_is_what_is_read_anew(name: str) -> None:
    model, granted = Model(), Granted()
    before = granted.state(Inventory.of(model))
    assert granted.state(Inventory.of(model)) is before == model_state(model)
    (CHANGES | FOLLOWED)[name](model)
    now = granted.state(Inventory.of(model))
    assert now == model_state(model)
    assert (now != before) == (name in CHANGES)


def test_equal_numbers_that_are_written_differently() -> None:
    model, granted, words = Model(), Granted(), list[str]()
    values = (1, True, 1.0, complex(1), 0.0, -0.0, "1", torch.float32, "torch.float32", Mode.ONCE, None, [1], [True])
    for value in values:
        model.blocks[1].gain = value  # type: ignore[assignment]
        words.append(granted.state(Inventory.of(model)).word)
        assert words[-1] == model_state(model).word
    assert len(set(words)) == len(values)


def test_another_config_of_the_same_model() -> None:
    """Each is written once, where it is found first; which module holds which is written for all."""
    model = Model()
    first, second = model.blocks
    first.config, second.config = model.config, Config()  # type: ignore[assignment]
    second.config.squash = True  # type: ignore[union-attr]
    before = model_state(model)
    first.config = second.config
    assert model_state(model) != before


def test_dropout_of_another_probability() -> None:
    model = Model().train()
    parallel = sp.parallelize(model, compile=False)
    run(parallel, model)
    for block in model.blocks:
        block.drop.p = 0.0
    found, right = run(parallel, model), run(model, model)
    assert relative_error(found["loss"], right["loss"]) < 1e-12


def test_a_state_depends_on_no_process() -> None:
    """Neither on addresses nor on the order of sets: ranks compare it with what they saw before.  (But for tensors in
    containers: those are told apart by nothing else.)"""
    model, twin, kept = Model(), Model(), torch.ones(D)
    for each in (model, twin):
        for block in each.blocks:
            block.kept = [kept]  # type: ignore[assignment]
        each.words = {"one", "two", "three"}  # type: ignore[assignment]
        each.many = list(range(1000))  # type: ignore[assignment]
        each.thing = object()  # type: ignore[assignment]
    assert model_state(model) == model_state(twin)
    assert " at 0x" not in model_state(model).text


def test_devices_without_their_numbers() -> None:
    assert without_numbers("arange(8, device: cuda:3)") == "arange(8, device: cuda)"
    assert without_numbers("device(type='cuda', index=1)") == "device(type='cuda')"
    assert without_numbers("striped:64 on cpu") == "striped:64 on cpu"


def test_a_value_that_changes_at_every_call_is_named() -> None:
    model = Model()
    parallel = sp.parallelize(model, compile=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(10):
            model.blocks[1].gain = 1.0 + step
            run(parallel, model)
    said = [str(each.message) for each in caught if "captures of one model" in str(each.message)]
    assert len(said) == 1
    assert "it has changed in 'blocks.1.gain = 8.0'" in said[0]
