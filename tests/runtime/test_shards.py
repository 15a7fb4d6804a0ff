"""BoundLayout: what a person cuts and joins by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from sp.errors import InputError, StrategyError
from sp.layout import LAYOUTS, find_layout
from sp.mesh import MeshGroups
from sp.runtime.shards import BoundLayout
from sp.testing import run_mesh, run_ranks
from tests.runtime.fake_group import fake_group


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on_every_rank(layout: str, world: int, fn: Callable[[BoundLayout], Any]) -> list[Any]:
    return run_ranks(world, lambda group: fn(BoundLayout(LAYOUTS[layout], group.group_name)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_there_and_back(world: int, layout: str) -> None:
    def check(bound: BoundLayout) -> None:
        assert (bound.name, bound.world) == (layout, world)
        for length in (world, world + 1, 13):
            positions = bound.positions(length)
            assert positions.dtype == torch.int64
            assert len(positions) == bound.local_length(length)
            whole = numbers(2, length, 3)
            for dim in (1, -2):
                part = bound.shard(whole, dim)
                assert torch.equal(part, whole[:, positions])
                assert torch.equal(bound.unshard(part, dim), whole)
                assert torch.equal(bound.unshard(part, dim, length), whole)

    on_every_rank(layout, world, check)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_ranks_positions_can_be_asked(layout: str) -> None:
    def ask(bound: BoundLayout) -> None:
        for rank in range(3):
            expected = LAYOUTS[layout].positions(11, rank, 3)
            assert bound.positions(11, rank).tolist() == expected
            assert bound.local_length(11, rank) == len(expected)
        assert torch.equal(bound.positions(11), bound.positions(11, bound.rank))

    on_every_rank(layout, 3, ask)


def test_gradients_pass() -> None:
    x, weight = numbers(7, 2), numbers(7, 2, seed=1)

    def train(bound: BoundLayout) -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        part = bound.shard(leaf, 0)
        part.retain_grad()
        (bound.unshard(part.sin(), 0, 7) * weight).sum().backward()
        assert leaf.grad is not None
        assert part.grad is not None
        assert torch.equal(part.grad, bound.shard(leaf.grad, 0))
        return leaf.grad

    for gradient in on_every_rank("zigzag", 3, train):
        torch.testing.assert_close(gradient, x.cos() * weight)


@pytest.mark.parametrize("layout", [*LAYOUTS, "striped:2"])
def test_contiguous_parts_there_and_back(layout: str) -> None:
    whole, weight = numbers(2, 11, 3), numbers(2, 11, 3, seed=1)

    def check(group: dist.ProcessGroup) -> None:
        bound = BoundLayout(find_layout(layout), group.group_name)
        even = BoundLayout(LAYOUTS["contiguous"], group.group_name).local_length(11)
        for lengths in ([3, 4, 4], [0, 10, 1]):
            mine = whole.split(lengths, 1)[bound.rank].clone().requires_grad_()
            for given in (lengths, None, 11 if lengths[0] else None):
                part = bound.from_contiguous(mine, -2, given)
                assert torch.equal(part, bound.shard(whole, 1))
                assert torch.equal(bound.to_contiguous(part, 1, lengths), mine)
                assert bound.to_contiguous(part, 1).shape[1] == bound.to_contiguous(part, 1, 11).shape[1] == even
            (part.sin() * bound.shard(weight, 1)).sum().backward()
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad, (whole.cos() * weight).split(lengths, 1)[bound.rank])

    run_ranks(3, check)


def test_from_one_layout_to_another() -> None:
    def check(bound: BoundLayout) -> None:
        whole, striped = numbers(13, 2), BoundLayout(LAYOUTS["striped"], bound.group)
        part = bound.shard(whole, 0)
        assert torch.equal(bound.redistribute(part, 0, striped), striped.shard(whole, 0))
        assert torch.equal(bound.redistribute(part, 0, striped, 13), striped.shard(whole, 0))

    on_every_rank("zigzag", 3, check)
    alone = BoundLayout(LAYOUTS["zigzag"])
    assert torch.equal(alone.from_contiguous(numbers(5), 0), numbers(5))


def test_layouts_of_two_groups() -> None:
    def rank(mesh: MeshGroups) -> str:
        first, other = (BoundLayout(LAYOUTS["striped"], axis.group_name) for axis in (mesh.inner, mesh.outer))
        with pytest.raises(InputError) as caught:
            first.redistribute(numbers(3), 0, other, 6)
        return str(caught.value)

    for message in run_mesh((2, 2), rank):
        assert "the layouts are of different groups\n  needed: two layouts of one process group" in message


@pytest.mark.slow
def test_parts_are_dealt_in_compiled_code() -> None:
    def run(rank: int) -> tuple[Tensor, ...]:
        with fake_group(rank, 3, "parts") as group:
            bound = BoundLayout(LAYOUTS["striped"], group)
            torch._dynamo.reset()
            deal = torch.compile(lambda x: bound.from_contiguous(x, 0, 11).sin(), fullgraph=True, dynamic=True)
            return deal(numbers(LAYOUTS["contiguous"].local_length(11, rank, 3), 2)), numbers(bound.local_length(11), 2)

    for rank in range(3):
        found, like = run(rank)
        assert found.shape == like.shape


def test_without_a_group_it_is_a_world_of_one() -> None:
    bound = BoundLayout(LAYOUTS["striped"])
    assert (bound.rank, bound.world) == (0, 1)
    assert torch.equal(bound.unshard(bound.shard(numbers(3), 0), 0), numbers(3))
    assert bound.positions(3).tolist() == [0, 1, 2]


def test_it_compiles_into_one_graph_for_all_lengths() -> None:
    torch._dynamo.reset()
    with fake_group(1, 2) as group:
        bound = BoundLayout(LAYOUTS["striped"], group)

        def step(x: Tensor) -> tuple[Tensor, Tensor]:
            part = bound.shard(x, 1).sin()
            return bound.unshard(part, 1, x.shape[1]), bound.positions(x.shape[1])

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True)
        for length in (10, 11, 12):
            with torch._dynamo.config.patch(error_on_recompile=length > 10):
                for found, expected in zip(compiled(numbers(3, length)), step(numbers(3, length)), strict=True):
                    assert torch.equal(found, expected)


def wrong(call: Callable[[BoundLayout], Any], message: str) -> Callable[[dist.ProcessGroup], None]:
    """On every rank the call raises an InputError, and nobody waits for anybody."""

    def check(group: dist.ProcessGroup) -> None:
        with pytest.raises(InputError, match=message):
            call(BoundLayout(LAYOUTS["striped"], group.group_name))

    return check


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda bound: bound.shard(numbers(2, 2), 1),
            "2 tokens cannot be spread over 3 ranks(.|\n)*needed: at least one",
        ),
        (lambda bound: bound.shard(numbers(2, 7), 2), r"shape \[2, 7\] has no dim 2"),
        (lambda bound: bound.shard(numbers(2, 7), -3), r"shape \[2, 7\] has no dim -3"),
        (lambda bound: bound.shard(numbers(), 0), r"shape \[\] has no dim 0"),
        (lambda bound: bound.unshard(numbers(2, 7), 5), "has no dim 5"),
        (lambda bound: bound.positions(2), "2 tokens cannot be spread"),
        (lambda bound: bound.local_length(2), "2 tokens cannot be spread"),
        (lambda bound: bound.positions(7, 3), "there is no rank 3(.|\n)*needed: 0 … 2"),
        (lambda bound: bound.unshard(numbers(2, 7), 1, 7), r"passes 7 tokens(.|\n)*needed: [23], its part of 7 tokens"),
        (
            lambda bound: bound.unshard(numbers(2, 2 + bound.rank), 1),
            r"pass \[2, 3, 4\] tokens, 9 in all(.|\n)*needed: \[3, 3, 3\], as the striped layout deals them",
        ),
        (lambda bound: bound.unshard(numbers(2, 0), 1), "0 tokens cannot be spread"),
        (lambda bound: bound.from_contiguous(numbers(2, 0), 1), "0 tokens cannot be spread"),
        (
            lambda bound: bound.from_contiguous(numbers(2, 3), 1, [3, 3]),
            r"\[3, 3\](.|\n)*needed: one for each of 3 ranks",
        ),
        (
            lambda bound: bound.from_contiguous(numbers(2, 3), 1, [4, 4, 4]),
            "passes 3 tokens(.|\n)*needed: 4, its part of 12",
        ),
        (
            lambda bound: bound.from_contiguous(numbers(2, 9), 1, 9),
            r"passes 9 tokens(.|\n)*its part of 9 tokens in the contig",
        ),
        (lambda bound: bound.to_contiguous(numbers(2, 3), 1, [3, 4, -1]), "needed: one for each"),
        (lambda bound: bound.to_contiguous(numbers(2, 3), 1, 18), "passes 3 tokens(.|\n)*needed: 6"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[BoundLayout], Any], message: str) -> None:
    run_ranks(3, wrong(call, message))


def test_a_group_that_is_gone_is_refused() -> None:
    with pytest.raises(StrategyError, match="does not exist"):
        BoundLayout(LAYOUTS["striped"], "gone").shard(numbers(2, 7), 1)
