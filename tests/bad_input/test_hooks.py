"""Hooks of one name that do other things, and hooks of backward: a graph that knows others is not used again."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import sp

X = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))


def scaled(factor: float) -> Callable[..., Any]:
    return lambda module, args, output: output * factor


HOOKS: list[Callable[[nn.Module], Any]] = [
    lambda m: m.register_forward_hook(lambda module, args, output: output * 2),
    lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    lambda m: m.register_forward_hook(lambda module, args, output: output * 3),
    lambda m: m.register_forward_hook(scaled(5.0)),
    lambda m: m.register_forward_hook(scaled(7.0)),
]


def test_hooks_of_one_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    parallel = sp.parallelize(model, compile=False)
    for register in HOOKS:
        handle = register(model[1])
        torch.testing.assert_close(parallel(X), model(X))
        handle.remove()
    torch.testing.assert_close(parallel(X), model(X))
    assert len(parallel.executables) == len(HOOKS) + 1


def kept(module: nn.Module, *gradients: Any) -> None: ...


class Keeper:
    def __call__(self, module: nn.Module, *gradients: Any) -> None: ...

    def method(self, module: nn.Module, *gradients: Any) -> None: ...


PLACES = [(partial(partial(kept)), kept), (Keeper(), Keeper), (Keeper().method, Keeper.method)]


@pytest.mark.parametrize(("hook", "written"), PLACES, ids=["partial", "object", "method"])
def test_a_hook_of_backward_is_named_by_its_line_whatever_it_is(hook: Callable[..., Any], written: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_full_backward_hook(hook)
    with pytest.raises(sp.UnsupportedModelError) as caught:
        sp.parallelize(model, compile=False)(X)
    line = inspect.getsourcelines(written)[1]
    assert f"  at:     {__file__}:{line} in {written.__name__}\n" in str(caught.value)


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_hooks_of_backward_are_refused_inside_and_kept_outside(register: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    parallel = sp.parallelize(model, compile=False)
    parallel(X)
    handle = getattr(model[1], register)(kept)
    with pytest.raises(sp.UnsupportedModelError, match="'1' of the model has a backward hook") as caught:
        parallel(X)
    _, at, needed, remedy = str(caught.value).splitlines()
    assert at == f"  at:     {__file__}:{kept.__code__.co_firstlineno} in kept"
    assert needed.endswith("a graph runs no hook of backward")
    assert remedy.endswith("or hooks on parameters (parameter.register_hook)")
    handle.remove()
    parallel(X)
    handle = getattr(model, register)(kept)
    with pytest.raises(sp.UnsupportedModelError, match=r"^the model has a backward hook\n"):
        parallel(X)
    handle.remove()
