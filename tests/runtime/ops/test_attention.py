"""`sp::attention` as an operator: its promises to autograd, autocast and the compiler.  Its numbers: test_ring.py."""

import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from functorch.compile import aot_function, make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule

from sp.errors import InputError, SpError, StrategyError
from sp.layout import LAYOUTS
from sp.mask import CAUSAL, Band
from sp.runtime.ops.attention import attention, attention_backward, saved_tensors
from sp.runtime.world import seat_name
from sp.testing import ProcessWorld, run_ranks
from tests.runtime.attention_reference import SCALE, make_inputs, relative_errors, single
from tests.runtime.scored import CASES, leaves_of, trains

LENGTH = 12


def arguments(length: int = LENGTH, kernel: str = "flash", mask: Band = CAUSAL, group: str = "") -> tuple[Any, ...]:
    return [], str(mask), "", SCALE, length, length, "striped", "ring", kernel, group


def requiring_grad(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.detach().clone().requires_grad_() for x in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kernel", ["dense", "flash"])
def test_opcheck(dtype: torch.dtype, kernel: str) -> None:
    q, k, v, grad = make_inputs(LENGTH, dtype=dtype)
    qkv = requiring_grad(q, k, v)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    torch.library.opcheck(attention, (*qkv, *arguments(kernel=kernel)), **tolerance)
    out, kept = attention(q, k, v, *arguments(kernel=kernel))
    saved = saved_tensors(q, k, v, out, kept)
    torch.library.opcheck(attention_backward, (grad, saved, k.shape[1:3], *arguments(kernel=kernel)))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2, 1, 3), (2, 1, 5, 1)], ids=str)
def test_opcheck_with_dims_of_one(shape: tuple[int, int, int, int]) -> None:
    q = torch.randn(shape).requires_grad_()
    torch.library.opcheck(attention, (q, q, q, *arguments(shape[2])))


SCORES = ("padding, rows that see nothing", "table", "sinks of queries, documents, soft cap", "bias that trains")


def scored(name: str, dtype: torch.dtype = torch.float64, group: str = "") -> tuple[Any, ...]:
    """The arguments behind q, k, v for one of the cases of `tests.runtime.scored`."""
    case = CASES[name]
    leaves = leaves_of(case, LENGTH, dtype)
    for x, grads in zip(leaves, trains(case.text), strict=True):
        x.requires_grad_(grads)
    return leaves, str(case.mask), case.text, *arguments(group=group)[3:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SCORES)
def test_opcheck_with_a_score(name: str, dtype: torch.dtype) -> None:
    q, k, v, grad = make_inputs(LENGTH, dtype=dtype)
    how = scored(name, dtype)
    torch.library.opcheck(attention, (*requiring_grad(q, k, v), *how))
    with torch.no_grad():
        out, kept = attention(q, k, v, *how)
    leaves = [x.detach() for x in how[0]]
    saved = saved_tensors(q, k, v, out, kept)
    torch.library.opcheck(attention_backward, (grad, saved, k.shape[1:3], leaves, *how[1:]))


def test_leaves_and_score_must_agree() -> None:
    q, k, v, _ = make_inputs(LENGTH)
    with pytest.raises(AssertionError, match="attention got 0 leaves, its score 'l0:k -> visible=l0' names 1"):
        attention(q, k, v, [], "full", "l0:k -> visible=l0", *arguments()[3:])


def test_autocast_casts_no_leaf() -> None:
    """A float32 bias keeps its bits: what the score's text says of dtypes is true."""
    inputs = make_inputs(LENGTH, dtype=torch.float32)
    leaves, *how = scored("bias that trains", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = attention(*requiring_grad(*inputs[:3]), leaves, *how)
        assert out.dtype == torch.bfloat16
        (gradient,) = torch.autograd.grad(out, leaves, inputs[3].to(out.dtype))
    assert gradient.dtype == torch.float32
    assert not gradient.equal(gradient.bfloat16().float())


@pytest.mark.parametrize("kernel", ["dense", "flash"])
@pytest.mark.parametrize("mask", [CAUSAL, Band(3, 0), Band()], ids=str)
@pytest.mark.parametrize("size", [1, 3])
def test_memory_layout_is_what_the_fake_promises(size: int, mask: Band, kernel: str) -> None:
    """Inductor compiles against these strides; inputs of any layout, heads first too."""

    def rank(group: dist.ProcessGroup) -> None:
        local = LAYOUTS["striped"].local_length(LENGTH, group.rank(), size)
        for dtype, first in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            inputs = [x.contiguous() if first else x for x in make_inputs(local, dtype=dtype)]
            how = arguments(kernel=kernel, mask=mask, group=group.group_name)
            out, kept = attention(*inputs[:3], *how)
            saved = saved_tensors(*inputs[:3], out, kept)
            *gradients, leaves = attention_backward(inputs[3], saved, inputs[1].shape[1:3], *how)
            assert leaves == []
            for x in (out, *gradients):
                assert x.transpose(1, 2).is_contiguous()
            assert kept[0].is_contiguous()
            assert [x.dtype for x in gradients] == [dtype] * 3

    run_ranks(size, rank)


def test_heads_are_merged_without_a_copy() -> None:
    q, k, v, _ = make_inputs(LENGTH)
    out, _ = attention(q, k, v, *arguments())
    assert out.transpose(1, 2).flatten(2).data_ptr() == out.data_ptr()


def test_gradcheck() -> None:
    q, k, v, _ = make_inputs(3, batch=1, heads=2, groups=1, size=4)
    for kernel in ("dense", "flash"):
        assert torch.autograd.gradcheck(
            lambda *qkv, kernel=kernel: attention(*qkv, *arguments(3, kernel))[0], requiring_grad(q, k, v)
        )


def test_lse_has_no_gradient_and_the_second_derivative_is_refused() -> None:
    q, k, v = requiring_grad(*make_inputs(LENGTH)[:3])
    out, (lse,) = attention(q, k, v, *arguments())
    assert out.requires_grad
    assert not lse.requires_grad
    (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(SpError, match="differentiated once more\n  needed: first derivatives"):
        dq.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_casts_as_torch_does(dtype: torch.dtype) -> None:
    """float32 becomes bfloat16, float64 stays; backward within autocast is not cast again, whatever the kernel."""
    inputs = make_inputs(LENGTH, dtype=dtype)
    qkv, reference = requiring_grad(*inputs[:3]), requiring_grad(*inputs[:3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = F.scaled_dot_product_attention(*reference, is_causal=True, scale=SCALE, enable_gqa=True)
        for kernel, limit in (("flash", 0.0), ("dense", 2e-2)):
            out, _ = attention(*qkv, *arguments(kernel=kernel))
            assert out.dtype == expected.dtype == (torch.bfloat16 if dtype == torch.float32 else dtype)
            assert relative_errors([out], [expected])[0] <= limit
            gradients = torch.autograd.grad(out, qkv, inputs[3].to(out.dtype))
            wanted = torch.autograd.grad(expected, reference, inputs[3].to(out.dtype), retain_graph=True)
            assert [x.dtype for x in gradients] == [dtype] * 3
            assert max(relative_errors(list(gradients), list(wanted))) <= limit


def test_float64_is_exact_within_autocast() -> None:
    """Also what the dense kernel does inside: its matrix products must not be cast."""
    inputs = make_inputs(LENGTH)
    exact = single(inputs, CAUSAL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        qkv = requiring_grad(*inputs[:3])
        out, _ = attention(*qkv, *arguments(kernel="dense"))
        found = [out, *torch.autograd.grad(out, qkv, inputs[3])]
    assert max(relative_errors(found, exact)) < 1e-14


def test_a_shard_of_another_length_is_our_mistake() -> None:
    def rank(group: dist.ProcessGroup) -> None:
        q, k, v, _ = make_inputs(7)
        found = r"rank \d of 2 got 7 queries and 7 keys.*\(12, 12\) tokens is \(6, 6\) .*'striped'"
        with pytest.raises(AssertionError, match=found):
            attention(q, k, v, *arguments(group=group.group_name))

    run_ranks(2, rank)


REFUSED = [
    ([(2, 4, 12, 8), (2, 3, 12, 8), (2, 3, 12, 8)], "divide the query heads"),
    ([(2, 4, 12, 8), (2, 2, 12, 8), (2, 4, 12, 8)], "as many value heads as key heads"),
    ([(2, 4, 12, 8), (2, 4, 12, 6), (2, 4, 12, 6)], "q and k of one size"),
    ([(4, 12, 8), (4, 12, 8), (4, 12, 8)], r"\[batch, heads, tokens, size\]"),
    ([(2, 4, 12, 8), (1, 4, 12, 8), (1, 4, 12, 8)], "one batch size"),
]


@pytest.mark.parametrize("mode", [FakeTensorMode, nullcontext])
@pytest.mark.parametrize(("shapes", "message"), REFUSED)
def test_refuses_shapes(shapes: list[tuple[int, ...]], message: str, mode: Any) -> None:
    """When it is traced and when it runs."""
    with mode(), pytest.raises(InputError, match=message):
        attention(*(torch.zeros(shape) for shape in shapes), *arguments())


def test_meta_tensors_pass() -> None:
    q = torch.empty(2, 4, LENGTH, 8, device="meta")
    out, (lse,) = attention(q, q, q, *arguments())
    assert (out.shape, lse.shape) == (q.shape, q.shape[:3])


def test_refuses_unlike_dtypes_and_unknown_names() -> None:
    q = torch.zeros(1, 2, LENGTH, 8)
    with pytest.raises(InputError, match="one dtype"):
        attention(q, q, q.double(), *arguments())
    with pytest.raises(StrategyError, match="no kernel 'flush'"):
        attention(q, q, q, *arguments(kernel="flush"))
    with pytest.raises(StrategyError, match="does not exist"):
        attention(q, q, q, *arguments(group="gone"))


class Layer(nn.Module):
    """Projections around an attention, as a model has them."""

    def __init__(self, group: str = "", layout: str = "striped", transport: str = "ring") -> None:
        super().__init__()
        self.how = layout, transport, "flash", group
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor, length: int) -> Tensor:
        batch, local, width = x.shape
        q, k, v = self.qkv(x).view(batch, local, 3, 4, 8).permute(2, 0, 3, 1, 4)
        # The scale is a literal, as in a captured graph; Dynamo would trace twice for a global.
        out, _ = attention(q, k, v, [], "causal", "", 0.3, length, length, *self.how)
        return self.out(out.transpose(1, 2).reshape(batch, local, width)).square().sum()


def test_attention_is_never_recomputed_in_backward() -> None:
    """The partitioner of AOTAutograd may recompute what is cheap; an attention with communication is not."""
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def model(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = (x @ w).view(2, LENGTH, 3, 4, 8).permute(2, 0, 3, 1, 4)
        out, _ = attention(q.sin(), k.cos(), v, *arguments())
        return out.transpose(1, 2).reshape(2, LENGTH, 32).square().sum()

    run = aot_function(model, keep, keep, min_cut_rematerialization_partition)
    run(torch.randn(2, LENGTH, 32), torch.randn(32, 96, requires_grad=True)).backward()
    forward, backward = ([str(node.target) for node in graph.graph.nodes] for graph in graphs)
    assert [forward.count(f"sp.{name}.default") for name in ("attention", "attention_backward")] == [1, 0]
    assert [backward.count(f"sp.{name}.default") for name in ("attention", "attention_backward")] == [0, 1]


def compare_compiled(
    backend: str, group: str, world: int, rank: int, layout: str = "striped", transport: str = "ring"
) -> tuple[float, int]:
    """The largest relative error of compiled loss and gradients at several lengths, and how many graphs it took."""
    torch.manual_seed(0)
    layer, counter = Layer(seat_name(group), layout, transport), CompileCounterWithBackend(backend)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    errors: list[float] = []
    for length in (12, 17, 31):
        x = torch.randn(2, LAYOUTS[layout].local_length(length, rank, world), 32, requires_grad=True)
        losses = [run(x, length) for run in (compiled, layer)]
        found, wanted = ([loss, *torch.autograd.grad(loss, (x, *layer.parameters()))] for loss in losses)
        errors += relative_errors(list(found), list(wanted))
    return max(errors), counter.frame_count


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_to_one_graph_for_all_lengths(backend: str) -> None:
    error, graphs = compare_compiled(backend, "", 1, 0)
    assert error < 1e-5
    assert graphs == 1


class Biased(Layer):
    """A layer whose scores get a bias from a table that trains, and a key of their own."""

    TEXT = (
        "l0:table+grad l1:+grad; d = sub.Tensor(i, j); e = clamp.default(d, 0, 6); b = lookup(l0, e) -> bias=b, sink=l1"
    )

    def __init__(self) -> None:
        super().__init__()
        self.table, self.sink = nn.Parameter(torch.randn(7, 4)), nn.Parameter(torch.randn(1, 4, 1, 1))

    def forward(self, x: Tensor, length: int) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        how = ("causal", self.TEXT, 0.3, length, length, "striped", "ring", "flash", seat_name(""))
        out, _ = attention(q, k, v, [self.table, self.sink], *how)
        return self.out(out.transpose(1, 2).flatten(2)).square().sum()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_with_leaves_that_train(backend: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer, counter = Biased(), CompileCounterWithBackend(backend)
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    for length in (12, 17, 31):
        x = torch.randn(2, length, 32)
        found, wanted = (torch.autograd.grad(run(x, length), list(layer.parameters())) for run in (compiled, layer))
        assert max(relative_errors(list(found), list(wanted))) < 1e-5
        assert wanted[0].norm() > 0
    assert counter.frame_count == 1


def compare_compiled_on_a_rank(layout: str, transport: str) -> tuple[float, int]:
    group = dist.group.WORLD
    assert group is not None
    return compare_compiled("inductor", group.group_name, group.size(), group.rank(), layout, transport)


@pytest.mark.parametrize(("layout", "transport"), [("striped", "ring"), ("contiguous", "alltoall")])
def test_compiles_on_real_ranks(world2: ProcessWorld, layout: str, transport: str) -> None:
    """Uneven shares too: the lengths 17 and 31 are odd.  What is dealt and kept has symbolic sizes and comes back."""
    for error, graphs in world2.run(compare_compiled_on_a_rank, layout, transport):
        assert error < 1e-5
        assert graphs == 1
