"""shard, unshard, narrow, widen: against plain indexing by the positions of each rank."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from sp.errors import StrategyError
from sp.layout import LAYOUTS
from sp.runtime.ops import narrow, shard, unshard
from sp.runtime.ops.placement import widen
from sp.testing import run_ranks
from tests.runtime.fake_group import fake_group

DTYPES = [
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool),
]
UTILS = ("test_schema", "test_autograd_registration", "test_faketensor")


def rows(layout: str, start: int, length: int, total: int, rank: int, world: int) -> list[int]:
    """The definition: where, in a value over start … start+length-1, the positions of `rank` lie."""
    positions = LAYOUTS[layout].positions(total, rank, world)
    return [position - start for position in positions if start <= position < start + length]


def taken(x: Tensor, dim: int, outer: int, inner: int, picked: list[int]) -> Tensor:
    """Plain indexing: of [… outer*n*inner …], only the picked positions."""
    n, index = x.size(dim) // (outer * inner), torch.tensor(picked, dtype=torch.int64)
    return x.unflatten(dim, (outer, n, inner)).index_select(dim + 1, index).flatten(dim, dim + 2)


def spans(total: int) -> Iterator[tuple[int, int]]:
    """(start, length): the whole, without the last or first position, one position, none at all, a piece."""
    yield from {(0, total), (0, total - 1), (1, total - 1), (total - 1, 1), (0, 1), (0, 0), (total // 3, total // 2)}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """The same on every rank: threads share torch's own generator."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 6, 7, 8])
def test_shard_and_unshard_are_indexing_by_positions(world: int, layout: str) -> None:
    def check(group: dist.ProcessGroup) -> None:
        for total in (world, world + 1, 2 * world + 1, 19):
            for (start, length), (outer, inner), dim in product(spans(total), [(1, 1), (2, 3)], [0, 1]):
                shape = [2, 2]
                shape[dim] = outer * length * inner
                whole, place = numbers(*shape), (dim, outer, start, length, total, layout, group.group_name, inner)
                part = shard(whole, *place)
                picked = rows(layout, start, length, total, group.rank(), world)
                assert torch.equal(part, taken(whole, dim, outer, inner, picked)), place
                assert torch.equal(unshard(part, *place), whole), place

    run_ranks(world, check)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_narrow_and_widen_are_slices_of_the_whole(world: int, layout: str) -> None:
    total, outer, inner = 13, 2, 3

    def check(group: dist.ProcessGroup) -> None:
        name = group.group_name
        for (start, length), (new_start, new_length) in product(spans(total), spans(total)):
            if not start <= new_start <= new_start + new_length <= start + length:
                continue
            whole = numbers(2, outer * length * inner, 2)
            sliced = taken(whole, 1, outer, inner, [*range(new_start - start, new_start - start + new_length)])
            part = shard(whole, 1, outer, start, length, total, layout, name, inner)
            less = narrow(part, 1, outer, start, length, new_start, new_length, total, layout, name, inner)
            assert torch.equal(less, shard(sliced, 1, outer, new_start, new_length, total, layout, name, inner))
            more = widen(less, 1, outer, new_start, new_length, start, length, total, layout, name, inner)
            zeros = torch.zeros_like(whole).unflatten(1, (outer, length, inner))
            zeros[:, :, new_start - start :][:, :, :new_length] = sliced.unflatten(1, (outer, new_length, inner))
            assert torch.equal(more, shard(zeros.flatten(1, 3), 1, outer, start, length, total, layout, name, inner))

    run_ranks(world, check)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_travels_bit_by_bit(dtype: torch.dtype) -> None:
    whole = torch.randint(0, 256, (5, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    whole = whole % 2 == 1 if dtype == torch.bool else whole.view(dtype)

    def check(group: dist.ProcessGroup) -> None:
        part = shard(whole, 0, 1, 0, 5, 5, "striped", group.group_name)
        again = unshard(part, 0, 1, 0, 5, 5, "striped", group.group_name)
        assert again.dtype == dtype
        assert torch.equal(again.view(torch.uint8), whole.view(torch.uint8))

    run_ranks(3, check)


def test_any_strides_in_and_fresh_contiguous_tensors_out() -> None:
    base = numbers(4, 3, 7, 2)
    strided = [base.transpose(1, 2), base.permute(3, 2, 1, 0), base[:, :1].expand(4, 5, 7, 2).transpose(1, 2)]

    def check(group: dist.ProcessGroup) -> None:
        for whole, layout in product(strided, LAYOUTS):
            place = (1, 1, 0, 7, 7, layout, group.group_name)
            part = shard(whole, *place)
            again = unshard(part.transpose(0, 2).contiguous().transpose(0, 2), *place)
            less = narrow(part, 1, 1, 0, 7, 0, 7, 7, layout, group.group_name)
            assert torch.equal(again, whole)
            assert torch.equal(less, part)
            assert all(x.is_contiguous() for x in (part, again, less))
            assert len({x.untyped_storage().data_ptr() for x in (base, part, again, less)}) == 4

    run_ranks(3, check)
    run_ranks(1, check)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_gradients_are_those_of_one_device(world: int, layout: str) -> None:
    """A replicated leaf's gradient is whole on every rank, through gathers, sub-spans and a second derivative."""
    batch, total, width = 2, 11, 3
    x, weight = numbers(batch, total, width), numbers(batch, total - 1, width, seed=1)

    def penalized(loss: Tensor, leaf: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
        return loss + gradient.square().sum()

    single = x.clone().requires_grad_()
    y = (single.exp()[:, 1:] * 2).sin().reshape(-1, width)
    penalized((y * weight.view(-1, width)).square().sum(), single).backward()

    def check(group: dist.ProcessGroup) -> Tensor:
        tail = (total, layout, group.group_name)
        leaf = x.clone().requires_grad_()
        part = shard(leaf, 1, 1, 0, total, *tail).exp()
        less = (narrow(part, 1, 1, 0, total, 1, total - 1, *tail) * 2).sin()
        whole = unshard(less.reshape(-1, width), 0, batch, 1, total - 1, *tail)
        penalized((whole * weight.view(-1, width)).square().sum(), leaf).backward()
        assert leaf.grad is not None
        return leaf.grad

    for gradient in run_ranks(world, check):
        torch.testing.assert_close(gradient, single.grad, rtol=1e-13, atol=1e-13)


def test_the_gradient_of_a_part_is_the_part_of_the_gradient() -> None:
    total, weight = 10, numbers(10)

    def check(group: dist.ProcessGroup) -> None:
        place = (0, 1, 0, total, total, "zigzag", group.group_name)
        part = shard(numbers(total, seed=1), *place).requires_grad_()
        (unshard(part, *place) * weight).sum().backward()  # the same loss on every rank, so no sum over them
        assert part.grad is not None
        assert torch.equal(part.grad, shard(weight, *place))

    run_ranks(3, check)


def cases(layout: str, group: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each op with arguments: merged dims, a sub-span that leaves some ranks with little."""
    outer, start, length, total, inner = 2, 1, 5, 7, 3
    place = (1, outer, start, length, total, layout, group, inner)
    whole = numbers(2, outer * length * inner, 2).requires_grad_()
    part = shard(whole, *place).detach().requires_grad_()
    fewer = (1, outer, start, length, 2, 2, total, layout, group, inner)
    more = (1, outer, 2, 2, start, length, total, layout, group, inner)
    yield shard, (whole, *place)
    yield unshard, (part, *place)
    yield narrow, (part, *fewer)
    yield torch.ops.sp.widen.default, (narrow(part, *fewer).detach().requires_grad_(), *more)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck_without_a_group(layout: str) -> None:
    for op, arguments in cases(layout, ""):
        torch.library.opcheck(op, arguments)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck_on_every_rank(layout: str) -> None:
    """The dynamic check traces with patches that are global to the process: not for threads, see below."""

    def check(group: dist.ProcessGroup) -> None:
        for op, arguments in cases(layout, group.group_name):
            torch.library.opcheck(op, arguments, test_utils=UTILS)

    run_ranks(3, check)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck_with_symbolic_sizes(layout: str, rank: int) -> None:
    with fake_group(rank, 3) as group:
        for op, arguments in cases(layout, group):
            torch.library.opcheck(op, arguments, test_utils=("test_faketensor", "test_aot_dispatch_dynamic"))


@pytest.mark.parametrize(("rank", "world"), [(1, 2), (0, 3), (2, 3)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_lengths_cost_no_recompilation(layout: str, rank: int, world: int) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        batch, total, width = x.shape
        tail = (total, layout, group)
        part = shard(x, 1, 1, 0, total, *tail).sin()
        less = narrow(part, 1, 1, 0, total, 1, total - 1, *tail).cos()
        merged = shard(x[:, :-1].reshape(-1, width), 0, batch, 0, total - 1, *tail) * 2
        behind = shard(x.transpose(0, 1).reshape(total * batch, width), 0, 1, 0, total, *tail, batch) * 2
        return (
            unshard(part, 1, 1, 0, total, *tail),
            unshard(less, 1, 1, 1, total - 1, *tail),
            unshard(merged, 0, batch, 0, total - 1, *tail),
            unshard(behind, 0, 1, 0, total, *tail, batch),
        )

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    with fake_group(rank, world) as group:
        for batch, total in ((2, 24), (2, 25), (3, 26), (2, 1001)):
            recompiling = {"error_on_recompile": total != 24}
            x = numbers(batch, total, 5).requires_grad_()
            with torch._dynamo.config.patch(recompiling):
                found = compiled(x)
            for got, expected in zip(found, program(x), strict=True):
                assert torch.equal(got, expected)
            torch.autograd.backward(found, [torch.ones_like(got) for got in found])


def test_contradictions_are_caught() -> None:
    x = numbers(2, 7)
    with pytest.raises(AssertionError, match=r"dim 1 of \[2, 7\] is not 1 \* 6 positions \* 1"):
        shard(x, 1, 1, 0, 6, 6, "striped", "")
    with pytest.raises(AssertionError, match="no dim 2"):
        shard(x, 2, 1, 0, 7, 7, "striped", "")
    with pytest.raises(StrategyError, match="there is no layout 'stripped'"):
        shard(x, 1, 1, 0, 7, 7, "stripped", "")
    with pytest.raises(AssertionError, match="does not lie in"):
        shard(x, 1, 1, 1, 7, 7, "striped", "")
    with pytest.raises(AssertionError, match="is not inside"):
        narrow(x, 1, 1, 0, 7, 6, 2, 9, "striped", "")
    with pytest.raises(AssertionError, match="is not inside"):
        widen(x, 1, 1, 1, 7, 2, 7, 9, "striped", "")
    with pytest.raises(StrategyError, match="does not exist"):
        shard(x, 1, 1, 0, 7, 7, "striped", "gone")
