"""Worlds of ranks: messages arrive, collectives run in backward, and whatever goes wrong ends soon and says where."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.distributed_c10d import _resolve_process_group

from sp.testing.ranks import ProcessWorld, RankFailedError, run_processes, run_ranks

WORLDS = [1, 3, 16]
SOON_S = 20.0  # far below the default deadlines: what ends sooner was not ended by one


def pass_on(group: dist.ProcessGroup, x: torch.Tensor) -> torch.Tensor:
    """The x of the rank before."""
    rank, world = group.rank(), group.size()
    if world == 1:
        return x
    y = torch.empty_like(x)
    for work in (group.send([x], (rank + 1) % world, 7), group.recv([y], (rank - 1) % world, 7)):
        work.wait()
    return y


def open_files() -> int:
    """Sockets included; 0 where the system has no such directory."""
    files = Path("/proc/self/fd")
    return len(list(files.iterdir())) if files.exists() else 0


def c_threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


class SumOverRanks(torch.autograd.Function):
    """All-reduce forward and backward, and it remembers which thread backward ran in."""

    @staticmethod
    def forward(ctx, x, group, threads):
        ctx.group, ctx.threads = group, threads
        return funcol.wait_tensor(funcol.all_reduce(x, "sum", group))

    @staticmethod
    def backward(ctx, grad):
        ctx.threads.append(threading.get_ident())
        return funcol.wait_tensor(funcol.all_reduce(grad, "sum", ctx.group)), None, None


# Threads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
def test_threads_send_and_receive_in_a_ring(world):
    def once_around(group: dist.ProcessGroup) -> tuple[int, list[float]]:
        x, seen = torch.full((1000,), float(group.rank())), []
        for _ in range(world):
            x = pass_on(group, x)
            seen.append(x[-1].item())
        return group.size(), seen

    for rank, (size, seen) in enumerate(run_ranks(world, once_around)):
        assert size == world
        assert seen == [(rank - hop - 1) % world for hop in range(world)]


@pytest.mark.parametrize("world", WORLDS)
def test_threads_find_their_own_group_by_name_and_reduce_and_gather(world):
    def collect(group: dist.ProcessGroup) -> tuple[int, float, list[float]]:
        mine = _resolve_process_group(group.group_name)
        x = torch.full((1, 2), float(group.rank()))
        total = torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name)
        )
        rows = torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_gather_into_tensor(x, world, group.group_name)
        )
        return mine.rank(), total[0, 1].item(), rows[:, 1].tolist()

    for rank, result in enumerate(run_ranks(world, collect)):
        assert result == (rank, sum(range(world)), list(range(world)))


@pytest.mark.parametrize("world", WORLDS)
def test_threads_run_collectives_in_backward_each_in_its_own_thread(world):
    def train(group: dist.ProcessGroup) -> tuple[float, bool]:
        threads: list[int] = []
        x = torch.tensor([1.0 + group.rank()], requires_grad=True)
        y = SumOverRanks.apply(x, group, threads)
        ((group.rank() + 1) * y * y).sum().backward()
        return x.grad.item(), threads == [threading.get_ident()]

    total = sum(range(1, world + 1))  # y on every rank; d/dx of sum_r (r + 1) y^2 is 2 y sum_r (r + 1)
    assert run_ranks(world, train) == [(2.0 * total * total, True)] * world


def test_threads_leave_torch_distributed_alone():
    assert not dist.is_initialized()
    names = run_ranks(2, lambda group: group.group_name)
    assert len(set(names)) == 2
    assert not dist.is_initialized()
    for name in names:
        with pytest.raises(RuntimeError, match="resolve"):
            _resolve_process_group(name)


def test_no_rank_is_no_world():
    with pytest.raises(ValueError, match="world=0"):
        run_ranks(0, lambda group: None)
    with pytest.raises(ValueError, match="world=0"):
        ProcessWorld(0)


def test_a_world_with_more_sockets_than_allowed_is_refused_before_gloo_aborts(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 256))
    with pytest.raises(ValueError, match=r"16 ranks in one process open up to 304 files, .* 256: ulimit -n"):
        run_ranks(16, lambda group: None)


class PlannedError(Exception):
    pass


def wait_for(source: int, group: dist.ProcessGroup) -> None:
    group.recv([torch.empty(1)], source, 3).wait()


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(lambda group: wait_for(1, group), id="wait for it"),
        pytest.param(lambda group: wait_for((group.rank() + 2) % 4, group), id="wait for each other"),
        pytest.param(lambda group: group.allreduce([torch.ones(1)]).wait(), id="reduce"),
        pytest.param(lambda group: group.barrier().wait(), id="barrier"),
        pytest.param(lambda group: pass_on(group, torch.zeros(10**6)), id="send it much"),
        pytest.param(lambda group: time.sleep(0.5) or wait_for(1, group), id="come late"),
        pytest.param(lambda group: None, id="are done"),
    ],
)
def test_threads_end_when_one_rank_raises_and_its_error_is_the_one_shown(others):
    held = []  # a group that somebody still refers to must not keep its peers waiting

    def fail_on_1(group: dist.ProcessGroup) -> None:
        held.append(group)
        if group.rank() == 1:
            time.sleep(0.1)
            raise PlannedError("as planned")
        others(group)

    start, before = time.monotonic(), threading.active_count()
    with pytest.raises(PlannedError, match="as planned") as caught:
        run_ranks(4, fail_on_1)
    assert time.monotonic() - start < SOON_S
    assert threading.active_count() == before
    assert caught.value.__notes__ == ["on rank 1 of 4, the first to fail"]
    assert caught.traceback[-1].name == "fail_on_1"


def test_the_first_of_several_errors_by_time_is_shown():
    def fail_in_turn(group: dist.ProcessGroup) -> None:
        time.sleep(0.3 * (3 - group.rank()))
        raise PlannedError(group.rank())

    with pytest.raises(PlannedError, match="2"):
        run_ranks(3, fail_in_turn)


def test_threads_in_deadlock_meet_the_deadline_and_say_where_they_stand():
    before = threading.active_count()
    with pytest.raises(TimeoutError) as caught:
        run_ranks(3, lambda group: wait_for(group.rank() ^ 1, group) if group.rank() < 2 else None, timeout_s=0.5)
    message = str(caught.value)
    assert message.startswith("2 of 3 ranks have not ended in time\nrank 0 stands at")
    assert "rank 1 stands at" in message
    assert "rank 2" not in message
    assert message.count("in wait_for") == 2
    assert threading.active_count() == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_that_cannot_be_ended_is_left_behind_and_named(fails):
    release_it = threading.Event()

    def sleep_on_1(group: dist.ProcessGroup) -> None:
        if group.rank() == 1:
            release_it.wait()
        elif fails:
            raise PlannedError

    with pytest.raises(PlannedError if fails else TimeoutError) as caught:
        run_ranks(2, sleep_on_1, timeout_s=0.2)
    assert caught.value.__notes__[-1] == "rank 1 could not be stopped: it is left behind as a daemon thread"
    release_it.set()


def test_pytests_own_exceptions_come_through():
    with pytest.raises(pytest.skip.Exception):
        run_ranks(2, lambda group: pytest.skip("on a rank"))


def test_a_group_dies_with_its_world_without_the_garbage_collector():
    groups = []

    def remember(group: dist.ProcessGroup, fail: bool) -> None:
        groups.append(weakref.ref(group))
        if fail:
            raise PlannedError

    gc.disable()
    try:
        run_ranks(3, lambda group: remember(group, fail=False))
        with pytest.raises(PlannedError):
            run_ranks(3, lambda group: remember(group, fail=True))
    finally:
        gc.enable()
    assert [group() for group in groups] == [None] * 6


def test_many_worlds_leave_nothing_behind():
    def fail_on_0(group: dist.ProcessGroup) -> None:
        if group.rank() == 0:
            raise PlannedError
        wait_for(0, group)

    def one_world(number: int) -> None:
        if number % 5:
            run_ranks(3, lambda group: pass_on(group, torch.ones(4)))
        else:
            with pytest.raises(PlannedError):
                run_ranks(3, fail_on_0)

    counts = []
    for number in range(60):
        one_world(number)
        if number >= 10:
            counts.append((threading.active_count(), open_files(), c_threads()))
    assert all(now <= first for first, *later in zip(*counts, strict=True) for now in later)


def test_an_interpreter_with_a_rank_left_behind_still_exits():
    program = (
        "import time; from sp.testing.ranks import run_ranks\n"
        "run_ranks(2, lambda group: group.rank() and time.sleep(1000), timeout_s=0.2)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "TimeoutError: 1 of 2 ranks have not ended in time" in done.stderr
    assert "left behind as a daemon thread" in done.stderr
    assert "terminate" not in done.stderr


# Processes ----------------------------------------------------------------------------------------------------------


def describe(scale: float, add: torch.Tensor) -> dict[str, object]:
    x = torch.full((3,), scale * dist.get_rank())
    dist.all_reduce(x)
    leaf = torch.ones(2, requires_grad=True)
    return {"sum": x + add, "pid": os.getpid(), "threads": torch.get_num_threads(), "loss": leaf.sum()}


def raise_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise PlannedError(f"planned for {rank}")
    dist.barrier()


def kill_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def sleep_on(rank: int) -> int:
    if dist.get_rank() == rank:
        time.sleep(1000)
    return dist.get_rank()


def unpicklable() -> object:
    return lambda: None


def pids(world: ProcessWorld) -> list[object]:
    return [result["pid"] for result in world.run(describe, 1.0, torch.zeros(3))]


def test_processes_return_values_and_live_on(world2):
    results = world2.run(describe, 2.0, torch.ones(3))
    assert all(torch.equal(result["sum"], torch.full((3,), 3.0)) for result in results)
    assert [result["threads"] for result in results] == [1, 1]
    assert [result["loss"].item() for result in results] == [2.0, 2.0]
    assert pids(world2) == [result["pid"] for result in results]
    assert os.getpid() not in pids(world2)


def test_one_process_with_two_threads_and_a_value_that_cannot_travel():
    with ProcessWorld(1, threads_per_rank=2) as world:
        (result,) = world.run(describe, 1.0, torch.zeros(3))
        assert result["threads"] == 2
        with pytest.raises(RankFailedError, match=r"rank 0 of 1 failed:(.|\n)*local object"):
            world.run(unpicklable)
    assert not Path(f"/proc/{result['pid']}").exists()


def test_a_job_that_cannot_travel_harms_nobody(world2):
    before = pids(world2)
    with pytest.raises(Exception, match=r"[Cc]an't (pickle|get) local object"):
        world2.run(lambda: None)
    assert pids(world2) == before


def test_failures_of_processes_are_told_and_the_next_run_starts_anew():
    """One test, so that each start of a world serves two checks."""
    with ProcessWorld(2) as world:
        first = pids(world)
        start = time.monotonic()
        with pytest.raises(RankFailedError, match="PlannedError: planned for 1") as raised:
            world.run(raise_on, 1)
        assert raised.value.rank == 1
        assert str(raised.value).startswith("rank 1 of 2 failed:\nTraceback (most recent call last)")
        assert "in raise_on" in str(raised.value)
        assert time.monotonic() - start < SOON_S
        assert not any(Path(f"/proc/{pid}").exists() for pid in first)

        assert set(pids(world)).isdisjoint(first)
        with pytest.raises(RankFailedError, match=r"rank 0 of 2 was ended by SIGKILL \(exit code -9\)") as died:
            world.run(kill_on, 0)
        assert died.value.rank == 0

        second = pids(world)
        os.kill(second[1], signal.SIGKILL)  # between two runs
        with pytest.raises(RankFailedError, match="rank 1 of 2 was ended by SIGKILL"):
            world.run(describe, 1.0, torch.zeros(3))

        pids(world)
        with pytest.raises(TimeoutError) as late:
            world.run(sleep_on, 1, timeout_s=1.0)
        assert str(late.value).startswith("1 of 2 ranks have not ended in time\nrank 1: ")
        assert "in sleep_on" in str(late.value)


def test_a_deadline_too_short_to_start_in_is_met():
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"rank 0: \(not started yet\)"):
        run_processes(1, describe, 1.0, torch.zeros(3), timeout_s=0.1)
    assert time.monotonic() - start < SOON_S


def test_ranks_end_with_their_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, time\nfrom sp.testing.ranks import run_processes\n"
        "def sleep():\n    print(os.getpid(), flush=True)\n    time.sleep(1000)\n"
        "if __name__ == '__main__':\n    run_processes(1, sleep)\n"
    )
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as parent:
        child = Path(f"/proc/{int(parent.stdout.readline())}")
        parent.kill()
    deadline = time.monotonic() + SOON_S
    while child.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists()


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from sp.testing.ranks import run_processes\nrun_processes(1, print)\n")
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "is the script guarded by `if __name__ == '__main__'`?" in done.stderr
