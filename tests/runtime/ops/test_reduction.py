"""replicate and reduce: exact sums of gradients, and not one copy of a parameter."""

import copy
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd

from sp.errors import StrategyError
from sp.runtime.ops import peak, reduce, replicate
from sp.testing import run_ranks
from tests.runtime.fake_group import fake_group

DTYPES = [*(torch.float64, torch.float32, torch.bfloat16, torch.float16), *(torch.int64, torch.int32, torch.uint8)]


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Tied(nn.Module):
    """`weight` is used twice; `frozen` needs no gradient."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(numbers(6, 6))
        self.bias = nn.Parameter(numbers(6))
        self.frozen = nn.Parameter(numbers(6), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = replicate(self.weight, self.group), replicate(self.bias, self.group)
        hidden = F.linear(x, weight, bias).sin() * replicate(self.frozen, self.group)
        return reduce((hidden @ replicate(self.weight, self.group)).square().sum(), "sum", self.group)


def gradients(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    module(x).backward()
    return {name: value.grad for name, value in module.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_rank_has_the_gradient_of_all_tokens(world: int) -> None:
    tokens = numbers(11, 6, seed=1)
    expected = gradients(Tied(""), tokens)
    together, turn = threading.Barrier(world), threading.Lock()

    def traced(module: Tied) -> fx.GraphModule:
        """While one rank traces, every module call of the process is traced: no rank may make one."""
        together.wait(timeout=60)
        with turn:
            graph = fx.symbolic_trace(module)
        together.wait(timeout=60)
        return graph

    def check(group: dist.ProcessGroup) -> None:
        module = Tied(group.group_name)
        mine = tokens[group.rank() :: world]
        for candidate in (module, copy.deepcopy(module), traced(module)):
            found = gradients(candidate, mine)
            assert found.keys() == {"weight", "bias"}
            for name, value in found.items():
                torch.testing.assert_close(value, expected[name], rtol=1e-13, atol=1e-13)
        assert all(replicate(value, group.group_name).data_ptr() == value.data_ptr() for value in module.parameters())

    run_ranks(world, check)


def test_a_second_derivative_is_that_of_all_tokens() -> None:
    tokens = numbers(7, 6, seed=1)

    def penalty(group: str, mine: Tensor) -> Tensor:
        module = Tied(group)
        (gradient,) = torch.autograd.grad(module(mine), module.weight, create_graph=True)
        gradient.pow(3).sum().backward()
        assert module.weight.grad is not None
        return module.weight.grad

    expected = penalty("", tokens)
    for found in run_ranks(3, lambda group: penalty(group.group_name, tokens[group.rank() :: 3])):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reduce_is_the_sum_with_one_rounding(dtype: torch.dtype) -> None:
    parts = [(numbers(4, 5, seed=rank) * 8).abs().to(dtype) for rank in range(5)]
    wide = [part.float() if dtype in (torch.bfloat16, torch.float16) else part for part in parts]
    expected = torch.stack(wide).sum(0).to(dtype)

    def check(group: dist.ProcessGroup) -> Tensor:
        x = parts[group.rank()].t()
        total = reduce(x, "sum", group.group_name)
        assert total.is_contiguous()
        assert torch.equal(x, parts[group.rank()].t())
        return total

    totals = run_ranks(5, check)
    torch.testing.assert_close(totals[0], expected.t(), rtol=0 if dtype.itemsize <= 2 else 1e-6, atol=0)
    assert all(torch.equal(total, totals[0]) for total in totals)


def test_without_a_group_everything_is_the_identity() -> None:
    x = numbers(3).requires_grad_()
    total = reduce(replicate(x, ""), "sum", "")
    assert torch.equal(total, x)
    assert total.data_ptr() != x.data_ptr()
    total.sum().backward()
    assert torch.equal(x.grad, torch.ones(3, dtype=torch.float64))  # type: ignore[arg-type]


def test_without_gradients_nothing_is_communicated() -> None:
    with fake_group(0, 2) as group:
        module = Tied(group)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                view = replicate(module.weight, group)
                assert not (view * 2).requires_grad
                assert view.data_ptr() == module.weight.data_ptr()


def test_gradients_have_the_layout_of_their_parameter() -> None:
    weight = nn.Parameter(numbers(4, 6).t())
    (replicate(weight, "") * numbers(6, 4)).sum().backward()
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride() == (1, 6)


@pytest.mark.parametrize("group", ["", "threads"])
def test_opcheck(group: str) -> None:
    def check(name: str) -> None:
        utils = ("test_schema", "test_autograd_registration", "test_faketensor")
        for x in (numbers(3, 4).requires_grad_(), numbers(4, 3).t(), torch.arange(3), numbers().requires_grad_()):
            torch.library.opcheck(reduce, (x, "sum", name), test_utils=utils)
            torch.library.opcheck(replicate, (x, name), test_utils=utils)

    if group:
        run_ranks(3, lambda group: check(group.group_name))
    else:
        check("")


@pytest.mark.parametrize("world", [1, 3])
def test_opcheck_through_the_compiler(world: int) -> None:
    with fake_group(0, world) as group:
        for op, rest in ((reduce, ("sum", group)), (replicate, (group,))):
            torch.library.opcheck(op, (numbers(3, 4).requires_grad_(), *rest), test_utils="test_aot_dispatch_dynamic")


def test_one_node_before_and_a_view_below_with_a_sum_for_each_use_in_backward() -> None:
    graphs: list[str] = []

    def keep(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph.code)
        return make_boxed_func(graph.forward)

    def keep_dynamo(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph.code)
        return aot_autograd(fw_compiler=keep, bw_compiler=keep)(graph, inputs)

    torch._dynamo.reset()
    module = Tied("")
    torch.compile(module, backend=keep_dynamo, fullgraph=True, dynamic=True)(numbers(5, 6)).backward()
    dynamo, forward, backward = graphs
    assert dynamo.count("ops.sp.replicate") == 4
    assert "sp.replicate" not in forward
    assert "clone" not in forward
    assert forward.count("ops.sp.reduce") == 1
    assert backward.count("ops.sp.reduce") == 3
    assert fx.symbolic_trace(module).code.count("ops.sp.replicate") == 4


def test_contradictions_are_caught() -> None:
    with pytest.raises(AssertionError, match="no reduction 'mean', only sum, max, min"):
        reduce(numbers(2), "mean", "")
    with pytest.raises(AssertionError, match="sum of bools"):
        reduce(numbers(2) > 0, "sum", "")
    with pytest.raises(StrategyError, match="does not exist"):
        reduce(numbers(2), "sum", "gone")


KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.bool]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("op", ["max", "min"])
def test_the_extreme_of_all_ranks(op: str, dtype: torch.dtype) -> None:
    """Rank 0 has no tokens at all; what it says changes nothing."""
    parts = [(10 * numbers(2, rank, 3, seed=rank)).to(dtype) for rank in range(3)]
    whole = torch.cat(parts, 1)
    right = whole.amax(1, keepdim=True) if op == "max" else whole.amin(1, keepdim=True)

    def rank(group: dist.ProcessGroup) -> Tensor:
        return reduce(peak(parts[group.rank()], 1, op), op, group.group_name)

    for found in run_ranks(3, rank):
        assert found.dtype == dtype
        assert torch.equal(found, right)


def test_one_nan_is_everybodys_extreme() -> None:
    x = torch.tensor([[1.0, float("nan")], [float("inf"), -float("inf")]])

    def rank(group: dist.ProcessGroup) -> Tensor:
        return reduce(peak(x[group.rank(), None], 0, "max"), "max", group.group_name)

    for found in run_ranks(2, rank):
        torch.testing.assert_close(found, torch.tensor([[float("inf"), float("nan")]]), equal_nan=True)


def test_extremes_have_no_gradient() -> None:
    x = numbers(2, 3).requires_grad_()
    assert not peak(x, 1, "max").requires_grad
    assert not reduce(x, "max", "").requires_grad
    torch.library.opcheck(peak, (x, 1, "max"), test_utils=("test_schema", "test_faketensor"))
