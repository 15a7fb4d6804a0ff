"""Queries that every rank has, merged over the ranks' own keys: against torch's attention on one device."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from sp.layout import LAYOUTS
from sp.mask import FULL
from sp.runtime.ops.attention import attention
from sp.testing import run_ranks
from tests.runtime.attention_reference import SCALE, gather, make_inputs, relative_errors, single, spread


def merged(inputs: list[Tensor], layout: str, kernel: str, world: int) -> list[list[Tensor]]:
    """Each rank's out, dq, dk, dv, its parts of dk and dv put where they belong in the whole, zeros elsewhere."""
    length = inputs[1].shape[2]

    def rank(group: dist.ProcessGroup) -> list[Tensor]:
        here = torch.tensor(LAYOUTS[layout].positions(length, group.rank(), world), dtype=torch.long)
        q, k, v, grad = (x.detach().clone() for x in inputs)
        k, v = k[:, :, here], v[:, :, here]
        for x in (q, k, v):
            x.requires_grad_()
        call = ("full", "", SCALE, q.shape[2], length, layout, "merge", kernel, group.group_name)
        out, _ = attention(q, k, v, [], *call)
        dq, *parts = torch.autograd.grad(out, (q, k, v), grad)
        whole = [torch.zeros_like(x).index_copy(2, here, part) for x, part in zip(inputs[1:3], parts, strict=True)]
        return [out.detach(), dq, *whole]

    return run_ranks(world, rank)


def attending(queries: int, keys: int, dtype: torch.dtype = torch.float64, size: int = 8) -> list[Tensor]:
    q, *_, grad = make_inputs(queries, dtype=dtype, size=size)
    _, k, v, _ = make_inputs(keys, dtype=dtype, size=size)
    return [q, k, v, grad]


@pytest.mark.parametrize("kernel", ["dense", "flash"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("world", "queries", "keys"), [(1, 3, 5), (2, 1, 9), (3, 4, 3), (4, 6, 2), (5, 1, 31)])
def test_float64_is_exact(world: int, queries: int, keys: int, layout: str, kernel: str) -> None:
    """Also where some ranks have no key at all."""
    inputs = attending(queries, keys)
    right = single(inputs, FULL)
    found = merged(inputs, layout, kernel, world)
    summed = [torch.stack(parts).sum(0) for parts in zip(*(each[1:] for each in found), strict=True)]
    for each in found:
        assert torch.equal(each[0], found[0][0]), "all ranks hold the same bits"
        assert max(relative_errors([each[0], *summed], right)) < 1e-13


@pytest.mark.parametrize("kernel", ["dense", "flash"])
@pytest.mark.parametrize("transport", ["merge", "ring", "allgather", "alltoall"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_row_of_one_head(dtype: torch.dtype, transport: str, kernel: str) -> None:
    """Then every view is contiguous, and of what an op returns no two may share memory: a head that decodes a token, or
    one token on each rank."""
    world, size = 3, {"size": 8, "heads": 1, "groups": 1, "batch": 1, "dtype": dtype}
    q, *_, grad = make_inputs(1, **size)
    _, k, v, _ = make_inputs(world, **size)
    inputs = [q, k, v, grad] if transport == "merge" else make_inputs(world, **size)
    right = single(inputs, FULL)
    if transport == "merge":
        for found in merged(inputs, "striped", kernel, world):
            assert max(relative_errors(found[:1], right[:1])) < 64 * torch.finfo(dtype).eps
        return
    layout = "contiguous" if transport == "alltoall" else "striped"

    def rank(group: dist.ProcessGroup) -> list[Tensor]:
        return spread(inputs, FULL, layout, kernel, group.group_name, group.rank(), world, transport)

    found = gather(run_ranks(world, rank), layout, world)
    assert max(relative_errors(found, right)) < 64 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_no_worse_than_one_device(dtype: torch.dtype) -> None:
    inputs = attending(2, 320, dtype, size=32)
    exact = single([x.double() for x in inputs], FULL)
    alone = relative_errors(single(inputs, FULL)[:1], exact[:1])
    found = relative_errors(merged(inputs, "striped", "flash", 8)[0][:1], exact[:1])
    assert found[0] <= 1.5 * alone[0]


def test_the_plan_holds_the_tensors_to_it() -> None:
    q, k, v, _ = attending(2, 5)
    with pytest.raises(AssertionError, match=r"got 2 queries and 5 keys,.*share of \(3, 5\) tokens is \(3, 5\)"):
        attention(q, k, v, [], "full", "", SCALE, 3, 5, "striped", "merge", "dense", "")
    with pytest.raises(AssertionError, match="causal compares positions of two sequences"):
        attention(q, k, v, [], "causal", "", SCALE, 2, 5, "striped", "merge", "dense", "")
