"""promise and replicate_all: one message for many gradients, posted early and waited for late."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.utils._python_dispatch import TorchDispatchMode

from sp.runtime.ops import promise, reduce, replicate_all
from sp.testing import run_ranks
from tests.runtime.fake_group import fake_group

BLOCKS = 3


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Blocks(nn.Module):
    """Each block's gradients travel together.  In block 1 the weight is frozen, and nobody uses `spare`."""

    def __init__(self, group: str, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.group = group
        self.weights = nn.ParameterList([numbers(6, 6, seed=seed, dtype=dtype) for seed in range(BLOCKS)])
        self.biases = nn.ParameterList([numbers(6, seed=seed, dtype=dtype) for seed in range(BLOCKS)])
        self.spare = nn.Parameter(numbers(3, dtype=dtype))
        self.weights[1].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        members = [[weight, bias] for weight, bias in zip(self.weights, self.biases, strict=True)]
        members[1].append(self.spare)
        promises = [promise(each, self.group) for each in members]
        for each, its in zip(members, promises, strict=True):
            weight, bias, *_ = replicate_all(each, its, self.group)
            x = F.linear(x, weight, bias).sin()
        return reduce(x.square().sum(), "sum", self.group)


def gradients(module: nn.Module, x: Tensor, run: Callable[..., Any] | None = None) -> dict[str, Tensor | None]:
    module.zero_grad()
    (module if run is None else run)(x).backward()
    return {name: value.grad for name, value in module.named_parameters()}


def same(found: dict[str, Tensor | None], right: dict[str, Tensor | None]) -> None:
    assert found.keys() == right.keys()
    for name, expected in right.items():
        its = found[name]
        if expected is None:
            assert its is None
        else:
            torch.testing.assert_close(its, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_rank_has_the_gradient_of_all_tokens(world: int) -> None:
    """Of what is frozen or not used there is none."""
    tokens = numbers(11, 6, seed=1)
    right = gradients(Blocks(""), tokens)
    assert [name for name, value in right.items() if value is None] == ["spare", "weights.1"]

    def check(group: dist.ProcessGroup) -> None:
        module = Blocks(group.group_name)
        same(gradients(module, tokens[group.rank() :: world]), right)
        weight = module.weights[0]
        assert (
            replicate_all([weight], promise([weight], group.group_name), group.group_name)[0].data_ptr()
            == weight.data_ptr()
        )

    run_ranks(world, check)


def test_a_second_derivative_is_that_of_all_tokens() -> None:
    tokens = numbers(7, 6, seed=1)

    def penalty(group: str, mine: Tensor) -> Tensor:
        module = Blocks(group)
        (gradient,) = torch.autograd.grad(module(mine), module.weights[2], create_graph=True)
        gradient.pow(3).sum().backward()
        assert module.weights[0].grad is not None
        return module.weights[0].grad

    expected = penalty("", tokens)
    for found in run_ranks(3, lambda group: penalty(group.group_name, tokens[group.rank() :: 3])):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits_are_rounded_once(dtype: torch.dtype) -> None:
    parts = [(numbers(4, 5, seed=rank) * 8).abs().to(dtype) for rank in range(5)]
    expected = torch.stack([part.float() for part in parts]).sum(0).to(dtype)

    def rank(group: dist.ProcessGroup) -> Tensor:
        x = nn.Parameter(torch.zeros(4, 5, dtype=dtype))
        (replicate_all([x], promise([x], group.group_name), group.group_name)[0] * parts[group.rank()]).sum().backward()
        assert x.grad is not None
        return x.grad

    for found in run_ranks(5, rank):
        assert torch.equal(found, expected)


class Recorder(TorchDispatchMode):
    """What is called, in order: the ops of the messages, and the products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("sp::").removeprefix("aten::")
        if name in ("start_sums", "finish_sums", "cos"):  # cos: the gradient of sin, in each block's backward
            self.events.append(name)
        return func(*args, **(kwargs or {}))


ORDER = ["cos", "start_sums"] * BLOCKS + ["finish_sums"] * BLOCKS


def test_posted_between_blocks_and_waited_for_at_the_end() -> None:
    with fake_group(0, 2) as group:
        loss = Blocks(group)(numbers(4, 6))
        with Recorder() as recorder:
            loss.backward()
    assert recorder.events == ORDER


def test_the_compiler_keeps_that_order() -> None:
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    with fake_group(0, 2) as group:
        module = Blocks(group)
        compiled = torch.compile(module, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True)
        same(gradients(module, numbers(5, 6), compiled), gradients(Blocks(group), numbers(5, 6)))
    forward, backward = graphs
    names = [str(node.target).removeprefix("sp.").removeprefix("aten.") for node in backward.graph.nodes]
    known = ("start_sums", "finish_sums")
    assert [name.split(".")[0] for name in names if name.startswith(known)] == [x for x in ORDER if x != "cos"]
    assert "sp." not in "".join(str(node.target) for node in forward.graph.nodes if "sp.reduce" not in str(node.target))


def test_inductor_keeps_that_order_and_the_gradients() -> None:
    tokens = numbers(9, 6)
    torch._dynamo.reset()
    module = Blocks("")
    run = torch.compile(module, fullgraph=True, dynamic=True)
    same(gradients(module, tokens, run), gradients(Blocks(""), tokens))
    with fake_group(0, 2) as group:
        module.group = group
        loss = torch.compile(module, fullgraph=True, dynamic=True)(tokens)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            loss.backward()
    events = sorted(profile.events(), key=lambda event: event.time_range.start)
    found = [event.name.removeprefix("sp::") for event in events if event.name.startswith("sp::")]
    assert found == [name for name in ORDER if name != "cos"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_communicated(mode: Callable[[], Any]) -> None:
    with fake_group(0, 2) as group:
        module = Blocks(group)
        with mode(), Recorder() as recorder:
            module(numbers(4, 6))
    assert recorder.events == []


def test_opcheck() -> None:
    utils = ("test_schema", "test_autograd_registration", "test_faketensor")
    xs = [numbers(3, 4).requires_grad_(), numbers(5).requires_grad_()]
    torch.library.opcheck(torch.ops.sp.start_sums.default, (xs, ""), test_utils=utils)
    message = numbers(17).requires_grad_()
    torch.library.opcheck(torch.ops.sp.finish_sums.default, (message, [12, 5], torch.float64, ""), test_utils=utils)
