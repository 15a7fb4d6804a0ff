"""The way by the host's memory, walked by CPU tensors: every primitive, and a whole training step of each strategy."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode

import sp
from sp.models import Llama, LlamaConfig
from sp.runtime import comm
from sp.runtime.comm import all_gather, all_reduce, all_to_all, post_exchange
from sp.runtime.host import HostGroup, HostWork, crosses_host
from sp.runtime.world import find_world
from sp.testing import run_ranks
from sp.testing.compare import Errors, errors_between, run_once
from tests.runtime.fake_group import fake_group


@pytest.fixture
def by_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "crosses_host", lambda *_: True)


def test_gloo_reaches_cpu_alone() -> None:
    (gloo, _) = run_ranks(2, lambda group: group)
    assert crosses_host(gloo, torch.device("cuda"))
    assert not crosses_host(gloo, torch.device("cpu"))
    with fake_group(0, 2, devices=("cpu", "cuda")) as name:
        group = find_world(name).group
        assert group is not None
        assert not crosses_host(group, torch.device("cuda"))


@pytest.mark.usefixtures("by_host")
def test_primitives_give_the_same() -> None:
    def talk(group: dist.ProcessGroup) -> list[Tensor]:
        world = find_world(group.group_name)
        rank, size = world.rank, world.size
        mine = torch.arange(4.0) + 10 * rank
        exchange = post_exchange(world, mine, (rank + 1) % size, torch.zeros(4), (rank - 1) % size)
        assert all(isinstance(work, HostWork) for work in exchange.works)
        total = all_reduce(world, mine, dist.ReduceOp.SUM)
        parts = all_gather(world, mine[: 4 - rank], [(4 - each,) for each in range(size)])
        swapped = all_to_all(world, mine[:3], [1] * size, [1] * size)
        return [exchange.wait(), total, torch.cat(parts), swapped]

    for rank, (received, total, parts, swapped) in enumerate(run_ranks(3, talk)):
        assert received.tolist() == [10 * ((rank - 1) % 3) + i for i in range(4)]
        assert total.tolist() == [30 + 3 * i for i in range(4)]
        assert parts.tolist() == [0, 1, 2, 3, 10, 11, 12, 20, 21]
        assert swapped.tolist() == [rank, 10 + rank, 20 + rank]


def test_nothing_arrives_before_it_is_waited_for() -> None:
    def late(group: dist.ProcessGroup) -> tuple[float, float]:
        through, other = HostGroup(group), 1 - group.rank()
        received = torch.zeros(1)
        works = [through.recv([received], other, 0), through.send([torch.ones(1)], other, 0)]
        before = received.item()
        for work in works:
            work.wait()
        return before, received.item()

    assert run_ranks(2, late) == [(0.0, 1.0)] * 2


@pytest.mark.usefixtures("by_host")
@pytest.mark.parametrize("strategy", ["ring", "striped", "zigzag", "allgather", "ulysses"])
def test_a_training_step_is_the_same(strategy: str) -> None:
    model = Llama(LlamaConfig(layers=1, heads=4, kv_heads=2, width=32)).double()
    ids = torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(0))

    def compare(group: dist.ProcessGroup) -> Errors:
        plain = copy.deepcopy(model)
        parallel = sp.parallelize(copy.deepcopy(model), strategy, mesh=group, compile=False)
        return errors_between(run_once(parallel, (ids,), {"labels": ids}), run_once(plain, (ids,), {"labels": ids}))

    for errors in run_ranks(3, compare):
        assert errors.within(1e-11)


def test_copies_are_of_the_host() -> None:
    """Whatever device the tensors are of."""

    class Silent:
        def __getattr__(self, _: str) -> object:
            return lambda *given: given

    with FakeTensorMode():
        x = torch.empty(3, device="cuda")
        for work in (HostGroup(Silent()).send([x], 1, 0), HostGroup(Silent()).recv([x], 1, 0)):
            ((host, *_), *_) = work.work  # type: ignore[misc]  what Silent was given
            assert host.device.type == "cpu"
