"""Hooks of one name that do other things, and hooks of backward: a graph that knows others is not used again."""

from collections.abc import Callable
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


def test_hooks_of_backward_are_refused_inside_and_kept_outside() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    parallel = sp.parallelize(model, compile=False)
    parallel(X)
    handle = model[1].register_full_backward_hook(lambda module, into, out: into)
    with pytest.raises(
        sp.UnsupportedModelError, match="'1' of the model has a backward hook, which a graph does not run"
    ):
        parallel(X)
    handle.remove()
    parallel(X)
