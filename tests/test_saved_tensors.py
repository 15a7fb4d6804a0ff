"""Hooks on what autograd keeps for backward: the caller's work, the model's own are refused."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import sp
from sp.models import Llama, LlamaConfig
from sp.testing.compare import relative_error
from sp.testing.ranks import ProcessWorld


def llama() -> Llama:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=2, heads=4, kv_heads=2, width=32)).double()


def batch() -> Tensor:
    return torch.randint(0, 61, (2, 13), generator=torch.Generator().manual_seed(0))


class Negated:
    """Keeps everything with its sign changed, and counts."""

    def __init__(self) -> None:
        self.packed = self.unpacked = 0

    def pack(self, x: Tensor) -> Tensor:
        self.packed += 1
        return x.logical_not() if x.dtype == torch.bool else -x

    def unpack(self, x: Tensor) -> Tensor:
        self.unpacked += 1
        return x.logical_not() if x.dtype == torch.bool else -x

    def hooks(self) -> AbstractContextManager[Any]:
        return saved_tensors_hooks(self.pack, self.unpack)


def gradients(run: nn.Module, model: nn.Module, around: Callable[[], AbstractContextManager[Any]]) -> list[Tensor]:
    """Of the second of two steps; the first one captures."""
    for _ in range(2):
        model.zero_grad()
        with around():
            loss = run(batch(), labels=batch()).loss
        loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def worst_error(compiled: Any, checkpoint: bool, offload: bool) -> float:
    model, right, negated = llama(), llama(), Negated()
    parallel = sp.parallelize(model, compile=compiled, checkpoint=checkpoint)
    found = gradients(parallel, model, save_on_cpu if offload else negated.hooks)
    assert offload or negated.packed >= negated.unpacked > 0
    right(batch(), labels=batch()).loss.backward()
    pairs = zip(found, right.parameters(), strict=True)
    return max(relative_error(a, b.grad) for a, b in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_hooks_around_the_call(checkpoint: bool, offload: bool, world2: ProcessWorld) -> None:
    assert max(world2.run(worst_error, False, checkpoint, offload)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("compiled", [True, "blocks"])
def test_hooks_around_a_compiled_call(compiled: Any, offload: bool, world2: ProcessWorld) -> None:
    assert max(world2.run(worst_error, compiled, False, offload, timeout_s=300)) < 1e-12


class Offloading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.l = nn.Embedding(61, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.e(ids)
        with save_on_cpu():
            return self.l(x).sin()


def test_hooks_inside_of_the_model_are_refused() -> None:
    with pytest.raises(sp.UnsupportedModelError) as caught:
        sp.inspect(Offloading(), (batch(),))
    assert "torch.autograd.graph.saved_tensors_hooks" in str(caught.value)
    assert "around the call of the parallelized model" in str(caught.value)
    assert "test_saved_tensors.py" in str(caught.value)
