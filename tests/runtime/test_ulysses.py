"""Heads dealt for tokens, against torch's attention on one device and against a softmax written out in fp64."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode

from sp.layout import find_layout
from sp.mask import CAUSAL, FULL, Band
from sp.runtime import ulysses
from sp.runtime.ops.attention import attention
from sp.runtime.world import World
from sp.testing import ProcessWorld, run_ranks
from tests.runtime import scored
from tests.runtime.attention_reference import (
    SCALE,
    gather,
    make_inputs,
    relative_errors,
    single,
    spread,
    spread_and_gather,
)

MASKS = [FULL, CAUSAL, Band(5, 0), Band(3, 7), Band(0, 0), Band(None, 4), Band(9, None)]
# Query and key/value heads: none left for some ranks, groups across ranks, groups of two sizes on one rank.
HEADS = [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (5, 1), (5, 5), (6, 1), (6, 2), (6, 3), (8, 2)]
NAME = "alltoall"


@pytest.mark.parametrize("world", [1, 2, 3, 4, pytest.param(5, marks=pytest.mark.slow)])
def test_float64_is_exact(world: int) -> None:
    """Any heads, lengths that divide the world and that don't, as few tokens as ranks, fewer."""
    lengths = [4 * world + 1, world, 2 * world, 1]
    cases = [(MASKS[n % 7], lengths[n % 4], heads) for n, heads in enumerate(HEADS * 2)]
    inputs = [make_inputs(length, *heads) for _, length, heads in cases]

    def rank(group: dist.ProcessGroup) -> list[list[Tensor]]:
        how = ("contiguous", "dense", group.group_name, group.rank(), world, NAME)
        return [spread(x, mask, *how) for x, (mask, _, _) in zip(inputs, cases, strict=True)]

    for parts, x, (mask, length, heads) in zip(zip(*run_ranks(world, rank), strict=True), inputs, cases, strict=True):
        errors = relative_errors(gather(list(parts), "contiguous", length), single(x, mask))
        assert max(errors) < 1e-13, (mask, length, heads, errors)


FAST = ["documents", "table", "slopes", "sinks of queries, documents, soft cap", "sink where nothing is seen"]
SCORES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in scored.CASES]


@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str) -> None:
    """Worlds that divide the 4 heads, that don't, and with ranks that have none."""
    number = list(scored.CASES).index(name)
    world, length, groups = (3, 2, 5)[number % 3], (13, 16, 9)[number % 2], (4, 2, 1)[number % 3]
    inputs = make_inputs(length, groups=groups)
    found = scored.spread_and_gather(scored.CASES[name], inputs, "contiguous", "flash", world, NAME)
    errors = relative_errors(found, scored.written_out(scored.CASES[name], inputs))
    assert max(errors) < 1e-11, errors


@pytest.mark.parametrize(
    "name", [name if name == "documents" else pytest.param(name, marks=pytest.mark.slow) for name in scored.CASES]
)
def test_scores_in_many_blocks(name: str) -> None:
    """With pieces that are skipped."""
    inputs = make_inputs(530, groups=1, size=4)
    found = scored.spread_and_gather(scored.CASES[name], inputs, "contiguous", "flash", 3, NAME)
    errors = relative_errors(found, scored.written_out(scored.CASES[name], inputs))
    assert max(errors) < 1e-11, errors


@pytest.mark.parametrize("heads", [(4, 2), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_no_worse_than_one_device(dtype: torch.dtype, heads: tuple[int, int]) -> None:
    """Also where the gradients of a key head are added over ranks."""
    inputs = make_inputs(161, *heads, size=32, batch=1, dtype=dtype)
    exact = single([x.double() for x in inputs], CAUSAL)
    alone = relative_errors(single(inputs, CAUSAL), exact)
    found = relative_errors(spread_and_gather(inputs, CAUSAL, "contiguous", "flash", 2, NAME), exact)
    assert all(f <= 1.5 * a for f, a in zip(found, alone, strict=True)), (found, alone)


def test_heads_that_see_other_keys() -> None:
    """A leaf that differs between heads: what is skipped differs between ranks."""
    text = "l0:k l1:q+grad; t = mul.Tensor(s, l1) -> visible=l0, score=t"
    keys = torch.tensor([530, 300, 20, 530]).view(1, 4, 1, 1)
    seen = torch.arange(530).view(1, 1, 1, 530) < keys
    temperatures = scored.random(1, 4, 530, 1)
    case = scored.Case(text, lambda n: [seen, temperatures], lambda s, i, j, x: scored.hide(s * x[1], x[0]))
    inputs = make_inputs(530, groups=2, size=4)
    found = scored.spread_and_gather(case, inputs, "contiguous", "flash", 3, NAME)
    errors = relative_errors(found, scored.written_out(case, inputs))
    assert max(errors) < 1e-11, errors


def test_values_of_another_size() -> None:
    q, k, v, grad = make_inputs(11)
    inputs = [q, k, v[..., :3], grad[..., :3]]
    found = spread_and_gather(inputs, CAUSAL, "contiguous", "flash", 3, NAME)
    assert max(relative_errors(found, single(inputs, CAUSAL))) < 1e-13


def test_what_travels_in_how_many_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    """q, k and v in one, out in one; backward, its gradient in one, dq in one, dk and dv in one."""
    sent: dict[int, list[torch.dtype]] = {0: [], 1: []}
    swap = ulysses.all_to_all

    def recorded(world: World, send: Tensor, *rest: Any) -> Tensor:
        sent[world.rank].append(send.dtype)
        return swap(world, send, *rest)

    monkeypatch.setattr(ulysses, "all_to_all", recorded)
    spread_and_gather(make_inputs(8, 2, 2, dtype=torch.bfloat16), CAUSAL, "contiguous", "dense", 2, NAME)
    assert sent[0] == sent[1] == [torch.bfloat16] * 5
    sent[0].clear()
    spread_and_gather(make_inputs(8, 2, 1, dtype=torch.bfloat16), CAUSAL, "contiguous", "dense", 2, NAME)
    assert sent[0] == [torch.bfloat16] * 5, "what is added on arrival too"


def layout_of(x: Tensor) -> tuple[list[int], list[int], torch.dtype]:
    """Strides of dims of one say nothing."""
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    return list(x.shape), strides if x.numel() else [], x.dtype


@pytest.mark.parametrize("heads", HEADS[3:8], ids=str)
def test_what_was_dealt_is_kept_in_place_of_what_was_given(heads: tuple[int, int]) -> None:
    """As the fake says: shapes, strides and dtypes, on ranks without heads too; autograd saves these five alone."""

    def rank(group: dist.ProcessGroup) -> None:
        length, local = 10, find_layout("contiguous").local_length(10, group.rank(), 4)
        q, k, v, _ = make_inputs(local, *heads, dtype=torch.float32)
        call = [], "causal", "", SCALE, length, length, "contiguous", NAME, "dense", group.group_name
        out, kept = attention(q.requires_grad_(), k, v, *call)
        with FakeTensorMode(allow_non_fake_inputs=True):
            promised = ulysses.dealt_like(q, k, v, "contiguous", (length, length), group.group_name, False)
        assert [layout_of(x) for x in kept] == [layout_of(x) for x in promised]
        assert not any(x.requires_grad for x in kept)
        saved = out.grad_fn.saved_tensors  # type: ignore[union-attr]
        assert [x.data_ptr() for x in saved] == [x.data_ptr() for x in kept]
        given = {x.untyped_storage().data_ptr() for x in (q, k, v, out)}
        assert not given & {x.untyped_storage().data_ptr() for x in kept if x.numel()}

    run_ranks(4, rank)


def test_a_world_of_one_never_communicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ulysses, "all_to_all", None)
    inputs = make_inputs(6)
    found = spread_and_gather(inputs, CAUSAL, "contiguous", "flash", 1, NAME)
    assert max(relative_errors(found, single(inputs, CAUSAL))) < 1e-13


@pytest.mark.parametrize(("layout", "world"), [("striped", 2), ("striped/2", 4), ("striped/2", (1, 4))])
def test_tokens_are_contiguous(layout: str, world: int | tuple[int, int]) -> None:
    with pytest.raises(AssertionError, match=f"heads are dealt for contiguous tokens, these are {layout}"):
        spread_and_gather(make_inputs(6), CAUSAL, layout, "flash", world, NAME)


def gradients(length: int) -> tuple[float, bool]:
    """Of this process: the largest error, and whether a second run finds the same bits."""
    world = dist.get_world_size()
    group, inputs = dist.group.WORLD.group_name, make_inputs(length, 3, 1)  # type: ignore[union-attr]
    runs = [spread(inputs, CAUSAL, "contiguous", "flash", group, dist.get_rank(), world, NAME) for _ in range(2)]
    parts: list[Any] = [None] * world
    dist.all_gather_object(parts, runs[0])
    errors = relative_errors(gather(parts, "contiguous", length), single(inputs, CAUSAL))
    return max(errors), all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_processes(world2: ProcessWorld) -> None:
    for error, same in world2.run(gradients, 9):
        assert error < 1e-13
        assert same
