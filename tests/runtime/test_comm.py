from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from sp.errors import StrategyError
from sp.runtime import comm
from sp.runtime.comm import all_gather, all_reduce, all_to_all, post_exchange
from sp.runtime.world import World, find_world, seat_name
from sp.testing import ProcessWorld, run_ranks
from tests.runtime.fake_group import fake_group

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


def test_no_name_is_a_world_of_one() -> None:
    assert find_world("") == World(0, 1)


def test_world_is_found_by_name() -> None:
    found = run_ranks(3, lambda group: find_world(group.group_name))
    assert [(world.rank, world.size) for world in found] == [(0, 3), (1, 3), (2, 3)]


def test_a_seat_name_finds_the_world_and_says_which_rank_it_is() -> None:
    def names(group: dist.ProcessGroup) -> tuple[str, str]:
        seat = seat_name(group.group_name)
        assert find_world(seat) == find_world(group.group_name)
        assert seat_name(seat) == seat
        return group.group_name, seat

    for rank, (name, seat) in enumerate(run_ranks(3, names)):
        assert seat == f"{name} as rank {rank} of 3, ops 3"
    assert find_world(seat_name("")) == World(0, 1)


def test_another_ranks_seat_is_not_taken() -> None:
    def swapped(group: dist.ProcessGroup) -> World:
        return find_world(f"{group.group_name} as rank {1 - group.rank()} of 2, ops 3")

    with pytest.raises(AssertionError, match="made for rank"):
        run_ranks(2, swapped)


@pytest.mark.parametrize("name", ["no such group", "no such group as rank 1 of 2, ops 3", "gone"])
def test_unknown_or_destroyed_group_is_an_error(name: str) -> None:
    if name == "gone":
        (name,) = run_ranks(1, lambda group: group.group_name)
    with pytest.raises(StrategyError, match=r"does not exist(.|\n)*remedy: .*destroy_process_group"):
        find_world(name)


def neighbours(world: World) -> tuple[int, int]:
    return (world.rank + 1) % world.size, (world.rank - 1) % world.size


@pytest.mark.parametrize("size", [2, 3, 5])
def test_exchanges_of_different_sizes_overlap(size: int) -> None:
    """Two are under way at once, awaited in the other order; rank r sends r and r+1 elements, so rank 0 sends none."""

    def exchange(group: dist.ProcessGroup) -> list[list[float]]:
        world = find_world(group.group_name)
        to, source = neighbours(world)
        posted = [
            post_exchange(
                world,
                torch.full((world.rank + tag,), world.rank + tag / 10),
                to,
                torch.empty(source + tag),
                source,
                tag,
            )
            for tag in (0, 1)
        ]
        return [exchange.wait().tolist() for exchange in reversed(posted)][::-1]

    for rank, found in enumerate(run_ranks(size, exchange)):
        source = (rank - 1) % size
        assert found[0] == pytest.approx([source] * source)
        assert found[1] == pytest.approx([source + 0.1] * (source + 1))


def batched_ring(shift: int) -> list[float]:
    """The way of backends that need a batch (NCCL), over gloo's default group."""
    group = dist.group.WORLD
    assert group is not None
    world = find_world(group.group_name)
    to, source = neighbours(world)
    receive = torch.empty(3)
    works = comm._post_batched(group, torch.full((3,), float(world.rank + shift)), to, receive, source, 0)
    assert comm._post_batched(group, torch.empty(0), to, torch.empty(0), source, 0) == ()
    for work in works:
        work.wait()
    return receive.tolist()


def test_batched_exchange(world2: ProcessWorld) -> None:
    assert world2.run(batched_ring, 5) == [[6.0] * 3, [5.0] * 3]


def test_device_picks_the_way_of_posting(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA one batch, on CPU and wherever gloo goes by way of the host independent requests; neither is tried when
    the other fails."""
    posted: list[str] = []
    monkeypatch.setattr(comm, "_post_each", lambda *_: posted.append("each") or ())
    monkeypatch.setattr(comm, "_post_batched", lambda *_: posted.append("batched") or ())

    def post(group: dist.ProcessGroup, x: Tensor) -> None:
        post_exchange(World(0, 2, group), x, 1, x, 1)

    (gloo, _) = run_ranks(2, lambda group: group)
    with torch._subclasses.FakeTensorMode(), fake_group(0, 2, devices=("cpu", "cuda")) as name:
        for group in (find_world(name).group, gloo):
            assert group is not None
            post(group, torch.empty(2, device="cuda"))
            post(group, torch.empty(2))
    assert posted == ["batched", "each", "each", "each"]


def test_exchange_refuses_what_gloo_would_die_of() -> None:
    x = torch.zeros(2, 2)
    with pytest.raises(AssertionError, match="world of one"):
        post_exchange(World(0, 1), x, 0, x, 0)

    def itself(group: dist.ProcessGroup) -> None:
        with pytest.raises(AssertionError, match="itself"):
            post_exchange(find_world(group.group_name), x, group.rank(), x, group.rank())
        with pytest.raises(AssertionError, match="contiguous"):
            post_exchange(find_world(group.group_name), x.T, 1 - group.rank(), x, 1 - group.rank())

    run_ranks(2, itself)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(("op", "right"), [(dist.ReduceOp.SUM, torch.sum), (dist.ReduceOp.MAX, torch.amax)])
def test_all_reduce_is_fresh_and_the_same_everywhere(size: int, op: Any, right: Any) -> None:
    x = torch.randn(size, 7, 3, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
    before = x.clone()
    found = run_ranks(size, lambda group: all_reduce(find_world(group.group_name), x[group.rank()], op))
    assert x.equal(before)
    assert all(total.is_contiguous() and total.equal(found[0]) for total in found)
    torch.testing.assert_close(found[0], right(x, 0))
    alone = all_reduce(World(0, 1), x[0], op)
    assert alone.equal(x[0])
    assert alone.data_ptr() != x[0].data_ptr()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_gather_of_different_sizes(size: int, dtype: torch.dtype) -> None:
    parts = [torch.arange(2 * (rank % 2 + rank)).view(2, -1).to(dtype) for rank in range(size)]  # rank 0 has none
    shapes = [part.shape for part in parts]
    for found in run_ranks(size, lambda group: all_gather(find_world(group.group_name), parts[group.rank()], shapes)):
        assert all(f.equal(p) and f.is_contiguous() for f, p in zip(found, parts, strict=True))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
def test_all_gather_of_one_element_of_a_row(shape: tuple[int, ...]) -> None:
    """It says that it is contiguous, and keeps the strides of the row."""

    def gather(group: dist.ProcessGroup) -> list[float]:
        part = torch.empty_strided(shape, [8] * len(shape), dtype=torch.float64).fill_(group.rank())
        return [found.item() for found in all_gather(find_world(group.group_name), part, [shape] * 2)]

    assert run_ranks(2, gather) == [[0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_to_all_of_different_sizes(size: int, dtype: torch.dtype) -> None:
    """Also where a rank sends nothing, or gets nothing."""

    def parts(sender: int, receiver: int) -> Tensor:
        return torch.full((sender * receiver,), 2 * sender + receiver).to(dtype)

    def swap(group: dist.ProcessGroup) -> Tensor:
        world = find_world(group.group_name)
        send = [parts(world.rank, rank) for rank in range(size)]
        source = [parts(rank, world.rank).numel() for rank in range(size)]
        return all_to_all(world, torch.cat(send), [x.numel() for x in send], source)

    for rank, found in enumerate(run_ranks(size, swap)):
        assert found.dtype == dtype
        assert found.equal(torch.cat([parts(sender, rank) for sender in range(size)]))


def test_all_to_all_checks_what_it_is_given() -> None:
    with pytest.raises(AssertionError, match="nobody"):
        all_to_all(World(0, 1), torch.zeros(3), [3], [3])

    def wrong(group: dist.ProcessGroup) -> None:
        world = find_world(group.group_name)
        with pytest.raises(AssertionError, match=r"3 elements, and \[1, 1\] to send"):
            all_to_all(world, torch.zeros(3), [1, 1], [1, 1])
        with pytest.raises(AssertionError, match="contiguous"):
            all_to_all(world, torch.zeros(4)[::2], [1, 1], [1, 1])

    run_ranks(2, wrong)


def test_all_gather_checks_what_was_promised() -> None:
    with pytest.raises(AssertionError, match="promised"):
        all_gather(World(0, 1), torch.zeros(3), [(4,)])
    with pytest.raises(AssertionError, match="2 shapes for 1 ranks"):
        all_gather(World(0, 1), torch.zeros(3), [(3,), (3,)])
