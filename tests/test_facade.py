"""What people do with a module that another one holds works as before: names, modes, checkpoints, copies."""

import copy

import pytest
import torch
from torch import Tensor, nn

import sp
from tests.test_trunks import Outer, images, made, step, worst


def held(model: nn.Module) -> nn.Module:
    model.encoder = sp.parallelize(model.encoder, compile=False)
    return model


def test_names_of_the_outer_model_stay() -> None:
    plain, model = made(), held(made())
    assert list(model.state_dict()) == list(plain.state_dict())
    assert "encoder.turn" not in model.state_dict()
    for names in (nn.Module.named_parameters, nn.Module.named_buffers, nn.Module.named_modules):
        assert [name for name, _ in names(model)] == [name for name, _ in names(plain)]  # type: ignore[operator]


def test_checkpoints_go_both_ways() -> None:
    """Strictly: a buffer that no checkpoint holds is not missed."""
    plain, model = made(), held(made())
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(1.5)
    model.load_state_dict(plain.state_dict())
    assert worst(step(model, images()), step(plain, images())) < 1e-11
    other = made()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images()), plain(images()))


def test_hooks_on_loading_are_the_module_s_own() -> None:
    seen: list[str] = []
    trunk = made().encoder
    trunk.register_load_state_dict_pre_hook(lambda *arguments: seen.append(arguments[2]))
    trunk.register_load_state_dict_post_hook(lambda module, keys: seen.append("after"))
    outer = nn.ModuleDict({"trunk": sp.parallelize(trunk, compile=False)})
    outer.load_state_dict(outer.state_dict())
    assert seen == ["trunk.", "after"]


def test_to_train_and_apply() -> None:
    class Frozen(nn.Module):
        """Keeps its norm in eval mode, whatever comes."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

        def train(self, mode: bool = True) -> "Frozen":
            super().train(mode)
            self.norm.eval()
            return self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.norm(x))

    trunk = Frozen()
    outer = nn.Sequential(sp.parallelize(trunk, compile=False), nn.Linear(4, 4))
    assert outer.eval() is outer
    assert not trunk.linear.training
    outer.train()
    assert (outer[0].training, trunk.linear.training, trunk.norm.training) == (True, True, False)
    outer.to(torch.bfloat16)
    assert {value.dtype for value in trunk.parameters()} == {torch.bfloat16}
    kinds: list[type[nn.Module]] = []
    outer.apply(lambda module: kinds.append(type(module)))
    assert kinds == [nn.LayerNorm, nn.Linear, Frozen, nn.Linear, nn.Sequential]


def test_copies_train_by_themselves() -> None:
    model = held(made())
    before = model(images())
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=0.1)
    twin(images()).backward()
    optimizer.step()
    assert torch.equal(model(images()), before)
    assert not torch.equal(twin(images()), before)
    right = made()
    right.load_state_dict(twin.state_dict())
    assert worst(step(twin, images()), step(right, images())) < 1e-11


def test_attributes_are_those_of_the_model() -> None:
    trunk = made().encoder
    parallel = sp.parallelize(trunk, compile=False)
    parallel.scale = 2.0
    assert (trunk.scale, parallel.scale, parallel.plain) == (2.0, 2.0, trunk)
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    torch.testing.assert_close(parallel(x), trunk(x))
    parallel.note = "mine"
    assert not hasattr(trunk, "note")
    parallel.extra = nn.Parameter(torch.zeros(2))
    assert trunk.extra is parallel.extra
    with pytest.raises(AttributeError, match="'Trunk' object has no attribute 'absent'"):
        _ = parallel.absent


class Wrapped(nn.Module):
    """As transformers' models for a task: what counts is a child called `model`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Outer()

    def forward(self, x: Tensor) -> Tensor:
        return self.model.encoder(self.model.patches(x)).square().mean()


def test_a_child_called_model() -> None:
    plain = made(Wrapped)
    parallel = sp.parallelize(plain, compile=False)
    assert parallel.model is plain.model
    assert parallel.plain is plain
    assert worst(step(parallel, images()), step(plain, images())) < 1e-11


@pytest.mark.slow
def test_an_outer_model_that_is_compiled() -> None:
    """Capture and agreement are no part of the graph around the trunk."""
    model = held(made())
    right = step(made(), images())
    found = step(torch.compile(model, backend="eager"), images())  # type: ignore[arg-type]
    assert worst({name.removeprefix("_orig_mod."): value for name, value in found.items()}, right) < 1e-11
