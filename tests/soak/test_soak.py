"""Nothing grows: short runs of what `python -m tests.soak.run` runs for long, and what goes when a model goes."""

import copy
import ctypes
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph_module import _loader

import sp
from sp.testing import ProcessWorld, run_ranks
from tests.soak.readings import Reading, caches, groups, growth, objects_by_type, python_threads
from tests.soak.run import table
from tests.soak.work import Job, soak, soak_process, tiny

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="what is in use is read from glibc, 2.33 or newer"
)

MIB = 1 << 20
LEAK = 512  # bytes of each step.  A capture leaves some 5 kB in caches of sympy, which have an end
IDS = torch.randint(0, 61, (2, 13), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", autouse=True)
def counting_what_is_new() -> Iterator[None]:
    """Each reading collects garbage and counts objects: not those that other tests have left in this process."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def world() -> Iterator[ProcessWorld]:
    with ProcessWorld(2) as ranks:
        yield ranks


def check_level(readings: list[Reading], objects: int) -> None:
    """From the third reading on nothing grows but, by less than 2 MiB in its first hundreds of steps, what is in use.

    objects: that a reading may have more than the one before it, on average."""
    _, _, first, *_, last = readings
    count = len(readings) - 3
    shown = f"\n{table(readings)}"
    assert (last.fds, last.threads, last.groups) == (first.fds, first.threads, first.groups), shown
    assert (last.plans, last.profiling) == (first.plans, False), shown
    assert last.objects - first.objects <= objects * count, shown
    assert last.used - first.used < 2 * MIB, shown


@pytest.mark.slow
def test_steps_of_processes(world: ProcessWorld) -> None:
    for readings in world.run(soak_process, Job(steps=300, recaptures=0, every=50), timeout_s=250):
        check_level(readings, objects=5)


def test_steps_and_recaptures_of_threads() -> None:
    """Five captures of a changed model; a capture that is kept has some ten thousand objects of its own."""
    models = iter([tiny(), tiny()])
    before = python_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = Job(steps=30, recaptures=5, every=6)
        readings, _ = run_ranks(2, lambda group: soak(job, next(models), group), timeout_s=250)
    assert readings[-1].captures == 5
    assert (readings[-1].fds, readings[-1].threads) == (readings[1].fds, readings[1].threads)
    assert python_threads() == before
    for cache in caches():
        size = cache.cache_info()
        assert size.maxsize is not None or size.currsize < 10, f"{cache.__module__}.{cache.__qualname__} has no bound"


def test_a_recapture_leaves_no_trace_in_torch() -> None:
    """torch.export's fake tensors and symbols, and the texts of graphs, which torch alone would keep for good."""
    model = tiny()
    parallel = sp.parallelize(model, compile=False)
    counts = list[tuple[int, int]]()
    for turn in range(3):
        model.turn = turn
        parallel(IDS, labels=IDS)
        del parallel.executables[:]
        counts.append((objects_by_type()[f"{ShapeEnv.__module__}.ShapeEnv"], len(_loader.eval_cache)))
    assert counts[1] == counts[2]


def test_estimates_leave_no_trace_in_torch() -> None:
    model = tiny()
    counts = list[tuple[int, int]]()
    for _ in range(3):
        sp.estimate(model, 64, 2, "h100", args=(IDS,))
        counts.append((objects_by_type()[f"{ShapeEnv.__module__}.ShapeEnv"], len(_loader.eval_cache)))
    assert counts[1] == counts[2]


@pytest.mark.parametrize("compiled", [False, {"backend": "eager"}], ids=["plain", "compiled"])
def test_a_deleted_model_frees_all_that_it_had(compiled: bool | dict[str, object]) -> None:
    models = [tiny(), tiny()]

    def rank(group: dist.ProcessGroup) -> list[weakref.ref[object]]:
        model = models.pop()
        parallel = sp.parallelize(model, mesh=group, compile=compiled)
        parallel(IDS, labels=IDS).loss.backward()
        (executable,) = parallel.executables
        graphs = (executable.captured.graph_module, executable.program.graph_module, executable.bound)
        return [weakref.ref(thing) for thing in (model, parallel, model.head.weight, executable, group, *graphs)]

    ranks = run_ranks(2, rank, timeout_s=250)
    gc.collect()
    for refs in ranks:
        assert [type(thing).__name__ for ref in refs if (thing := ref()) is not None] == []


def made_anew(times: int, port: int) -> list[tuple[float, float, int, int]]:
    """Of each time: the loss, its gradient's sum, torch's tables of groups without a group, and open files."""
    rank, world, found = dist.get_rank(), dist.get_world_size(), list[tuple[float, float, int, int]]()
    dist.destroy_process_group()
    for _ in range(times):
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
        model = tiny()
        parallel = sp.parallelize(model, compile=False)
        loss = parallel(IDS, labels=IDS).loss
        loss.backward()
        total = sum(float(parameter.grad.sum()) for parameter in model.parameters() if parameter.grad is not None)
        dist.barrier()
        dist.destroy_process_group()
        result = float(loss.detach()), total
        del parallel, loss, model
        gc.collect()
        found.append((*result, groups(), Reading.of(0, sp.parallelize(tiny(), compile=False)).fds))
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)  # that the world ends as it began
    return found


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_a_group_is_destroyed_and_made_anew_fifty_times(world: ProcessWorld) -> None:
    """Over the same port, with the same loss and gradients each time."""
    for found in world.run(made_anew, 50, _free_port(), timeout_s=900):
        assert len(set(found[1:])) == 1, found
        assert found[0][:3] == found[1][:3]


def test_a_group_is_destroyed_and_made_anew(world: ProcessWorld) -> None:
    for found in world.run(made_anew, 3, _free_port(), timeout_s=250):
        assert len(set(found[1:])) == 1, found


def _free_port() -> int:
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    return store.port


@pytest.mark.slow
@pytest.mark.timeout(3700)
def test_long_run(world: ProcessWorld) -> None:
    """More captures than are kept, so that some are dropped."""
    for readings in world.run(soak_process, Job(steps=1500, recaptures=75, every=100), timeout_s=3600):
        assert readings[-1].captures == 32
        assert growth(readings) < LEAK, f"\n{table(readings)}"
        assert growth(readings, "blocks") < 8, f"\n{table(readings)}"


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_a_kibibyte_that_each_step_keeps_is_found(world: ProcessWorld) -> None:
    world.run(soak_process, Job(steps=300, recaptures=0, every=300), timeout_s=900)  # what grows at first
    for readings in world.run(soak_process, Job(steps=240, recaptures=0, every=20), timeout_s=900):
        assert growth(readings) < LEAK, f"\n{table(readings)}"
    for readings in world.run(soak_process, Job(steps=240, recaptures=0, every=20, leak=1024), timeout_s=900):
        assert growth(readings) == pytest.approx(1024 + 33, abs=LEAK / 2), f"\n{table(readings)}"  # 33: of each bytes


KEEP: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "bytes": lambda: bytes(1024),
    "tensors": lambda: torch.ones(256),
    "C": lambda: ctypes.CDLL(None).malloc(1024),
}


@pytest.mark.parametrize(
    "kind", ["nothing", "tensors", *(pytest.param(k, marks=pytest.mark.slow) for k in ("bytes", "C"))]
)
def test_what_leaks_is_told_from_what_comes_and_goes(kind: str) -> None:
    """Ten megabytes of small pieces are there at each second reading, and their pages stay."""
    model, kept = sp.parallelize(tiny(), compile=False), list[object]()

    def read(step: int, each: Callable[[], object]) -> Reading:
        kept.extend(each() for _ in range(100))
        passing = [torch.ones(256) for _ in range(10_000 * (step % 2))]
        reading = Reading.of(step, model)
        del passing
        return reading

    found = growth([read(step, KEEP[kind]) for step in range(8)]) / 100
    assert abs(found) < 0.1 * LEAK if kind == "nothing" else found > 2 * LEAK


def test_spans_close_when_something_raises() -> None:
    """A range that stays open would hold its name for good, and all after it would stand inside it."""
    from sp.runtime.spans import span

    with torch.profiler.profile() as profiler:
        with pytest.raises(ValueError, match="broken"), span("outer"), span("inner {}", 1):
            raise ValueError("broken")
        with span("after"):
            torch.ones(1)
    spans = {event.name: event for event in profiler.events() if event.name.startswith("sp:")}
    assert set(spans) == {"sp: outer", "sp: inner 1", "sp: after"}
    assert spans["sp: after"].cpu_parent is None
    assert not torch.autograd._profiler_enabled()


def test_copies_of_a_model_have_captures_of_their_own() -> None:
    parallel = sp.parallelize(tiny(), compile=False)
    parallel(IDS)
    copied = copy.deepcopy(parallel)
    assert (len(parallel.executables), len(copied.executables)) == (1, 0)
