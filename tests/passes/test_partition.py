"""Partition: activations are recomputed as the budget says, and nothing that communicates ever is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, fx
from torch._functorch import config

import sp
from sp.errors import StrategyError
from sp.models import Llama, LlamaConfig
from sp.passes.partition import LEAST, Partition
from sp.testing.compare import relative_error
from sp.testing.ranks import ProcessWorld

LAYERS = 2


def llama(layers: int = LAYERS) -> Llama:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=layers, heads=4, kv_heads=2, width=32)).double()


def batch(length: int) -> Tensor:
    return torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(length))


def without_marks(graph: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
    with config.patch(activation_memory_budget=LEAST):
        return min_cut_rematerialization_partition(graph, inputs, **kwargs)


def backward_of(partition: Callable[..., Any]) -> list[str]:
    """The ops of the backward graph of a step."""
    parallel = sp.parallelize(llama(), compile=False)
    ids = batch(12)
    parallel(ids, labels=ids)
    bound, graphs = parallel.executables[0].bound, list[fx.GraphModule]()
    held = {**dict(bound.named_parameters()), **dict(bound.named_buffers())}

    def keep(graph: fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def run(values: list[Tensor], ids: Tensor, labels: Tensor) -> Tensor:
        return torch.func.functional_call(bound, dict(zip(held, values, strict=True)), (ids, labels))[1]

    aot_function(run, keep, keep, partition_fn=partition)(list(held.values()), ids, ids).backward()
    return [str(node.target).removesuffix(".default") for node in graphs[1].graph.nodes]


def test_left_alone_torch_repeats_attentions_and_marked_they_are_kept() -> None:
    repeated, kept, default = map(backward_of, (without_marks, Partition(0.0), Partition(1.0)))
    assert repeated.count("sp.attention") == LAYERS
    assert kept.count("sp.attention") == default.count("sp.attention") == 0
    assert kept.count("sp.attention_backward") == LAYERS
    assert kept.count("aten.mm") > default.count("aten.mm")  # something is recomputed


def names_of(parallel: sp.ParallelModule, ids: Tensor) -> list[str]:
    parallel(ids, labels=ids).loss.backward()  # compiles
    parallel.zero_grad()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        parallel(ids, labels=ids).loss.backward()
    return [event.name for event in profile.events()]


def worst_error(length: int, budget: float) -> tuple[float, int, int]:
    """Of the gradients; and how often an attention ran, forward and backward."""
    model, right, ids = llama(layers=1), llama(layers=1), batch(length)
    names = names_of(sp.parallelize(model, memory_budget=budget), ids)
    loss = right(ids, labels=ids).loss
    loss.backward()
    pairs = zip(model.parameters(), right.parameters(), strict=True)
    errors = [relative_error(a.grad, b.grad) for a, b in pairs]  # type: ignore[arg-type]
    return max(errors), names.count("sp::attention"), names.count("sp::attention_backward")


@pytest.mark.slow
def test_a_compiled_step_has_each_attention_once(world2: ProcessWorld) -> None:
    for error, forward, backward in world2.run(worst_error, 21, 0.0, timeout_s=280):
        assert error < 1e-12
        assert (forward, backward) == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_budget": 1.5}, "memory_budget is 1.5\n.*from 0.0 to 1.0"),
        ({"memory_budget": 0.5, "compile": False}, "memory_budget is 0.5 with compile=False"),
        ({"memory_budget": 0.5, "compile": {"backend": "eager"}}, "with a backend of your own\n.*Inductor"),
        ({"memory_budget": 0.5, "compile": {"mode": "max-autotune"}}, "with a mode of your own"),
    ],
)
def test_words_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        sp.parallelize(llama(), **options)
