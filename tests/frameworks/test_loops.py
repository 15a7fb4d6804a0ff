"""Accelerate, Lightning Fabric and DeepSpeed over a parallelized model: losses and parameters of one process."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import sp
from sp.errors import StrategyError
from sp.testing import ProcessWorld, RankFailedError
from tests.frameworks.texts import Sample, apart, collate, like_torchrun, make, parameters, samples

pytest.importorskip("transformers")

BOUND = 1e-6  # transformers takes the loss, and its gradient, in fp32
PER_REPLICA, STEPS, ACCUMULATED = 2, 6, 2
Outcome = tuple[list[float], dict[str, Tensor], Any]


@dataclass(frozen=True)
class Case:
    """`dp` x `sp` ranks; `summed` by whom: sp, and then DDP takes means of equal gradients; or DDP alone."""

    dp: int = 1
    sp: int = 2
    summed: str = "sp"

    def model(self, mesh: DeviceMesh) -> nn.Module:
        return sp.parallelize(make(), mesh=mesh["sp"], compile=False, sync_gradients=self.summed == "sp")

    @property
    def factor(self) -> int:
        """DDP divides by all ranks, those of one sequence included."""
        return 1 if self.summed == "sp" else self.sp

    def mesh(self) -> DeviceMesh:
        like_torchrun()
        return init_device_mesh("cpu", (self.dp, self.sp), mesh_dim_names=("dp", "sp"))


def data(case: Case) -> list[Sample]:
    return samples(PER_REPLICA * case.dp * 4, 1)  # more steps than in one pass


def sgd(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS // ACCUMULATED)


def batches(loader: Any) -> Iterator[Sample]:
    done = 0
    while True:
        for batch in loader:
            yield batch
            if (done := done + 1) == STEPS:
                return


def alone(case: Case, dtype: torch.dtype = torch.float64) -> Outcome:
    """Plain PyTorch: the mean over the replicas' parts of each batch, as DDP takes it."""
    model = make(dtype)
    optimizer, scheduler = sgd(model)
    losses: list[float] = []
    for batch in batches(DataLoader(data(case), PER_REPLICA * case.dp, collate_fn=list)):
        parts = [collate(batch[at : at + PER_REPLICA]) for at in range(0, len(batch), PER_REPLICA)]
        loss = torch.stack([model(**part).loss for part in parts]).mean()
        (loss / ACCUMULATED).backward()
        losses.append(loss.item())
        if len(losses) % ACCUMULATED == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    with torch.no_grad():
        evaluated = [model(**collate([text])).loss.item() for text in samples(4, 2)]
    return losses, parameters(model), evaluated


def mean_over_ranks(loss: Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def with_accelerate(case: Case) -> Outcome:
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader

    from sp.frameworks import Replicas

    mesh = case.mesh()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED, step_scheduler_with_optimizer=False)
    parallel = case.model(mesh)
    replicas = Replicas.of(parallel)
    assert (replicas.count, replicas.index) == (case.dp, mesh["dp"].get_local_rank())
    dealt = partial(prepare_data_loader, num_processes=replicas.count, process_index=replicas.index)
    loader = dealt(DataLoader(data(case), PER_REPLICA, collate_fn=collate))
    optimizer, scheduler = sgd(parallel)
    model, optimizer, scheduler = accelerator.prepare(parallel, optimizer, scheduler)
    losses: list[float] = []
    for batch in batches(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss * case.factor)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        losses.append(mean_over_ranks(loss))
    others = dealt(DataLoader(samples(4, 2), 1, collate_fn=collate))
    with torch.no_grad():
        found = [replicas.once(accelerator.gather(model(**batch).loss)) for batch in others]
    assert accelerator.unwrap_model(model) is parallel
    state = accelerator.get_state_dict(model)
    assert list(state) == list(make().state_dict())
    return losses, parameters(parallel), torch.cat(found).tolist()


def with_fabric(case: Case) -> Outcome:
    from lightning_fabric import Fabric

    mesh = case.mesh()
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=case.dp * case.sp, precision="64-true")
    fabric.launch()
    parallel = case.model(mesh)
    optimizer, scheduler = sgd(parallel)
    model, optimizer = fabric.setup(parallel, optimizer)
    texts = sorted_for(case.dp, data(case))
    sampler = DistributedSampler(texts, num_replicas=case.dp, rank=mesh["dp"].get_local_rank(), shuffle=False)
    loader = fabric.setup_dataloaders(DataLoader(texts, PER_REPLICA, sampler=sampler, collate_fn=collate))
    losses: list[float] = []
    for batch in batches(loader):
        last = len(losses) % ACCUMULATED == ACCUMULATED - 1
        with fabric.no_backward_sync(model, enabled=not last):
            loss = model(**batch).loss
            fabric.backward(loss * (case.factor / ACCUMULATED))
        losses.append(mean_over_ranks(loss))
        if last:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    with torch.no_grad():
        evaluated = [model(**collate([text])).loss.item() for text in samples(4, 2)]
    return losses, parameters(parallel), evaluated


def with_deepspeed(case: Case, stage: int) -> Outcome:
    """In fp32, which is what DeepSpeed trains in."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    mesh = case.mesh()
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    parallel = sp.parallelize(make(torch.float32), mesh=mesh["sp"], compile=False)
    config = {
        "train_micro_batch_size_per_gpu": PER_REPLICA,
        "gradient_accumulation_steps": ACCUMULATED,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer, scheduler = sgd(parallel)
    engine, *_ = deepspeed.initialize(model=parallel, optimizer=optimizer, lr_scheduler=scheduler, config=config)
    texts = sorted_for(case.dp, data(case))
    sampler = DistributedSampler(texts, num_replicas=case.dp, rank=mesh["dp"].get_local_rank(), shuffle=False)
    losses: list[float] = []
    for batch in batches(DataLoader(texts, PER_REPLICA, sampler=sampler, collate_fn=collate)):
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        losses.append(mean_over_ranks(loss))
    with torch.no_grad():
        evaluated = [engine(**collate([text])).loss.item() for text in samples(4, 2)]
    return losses, parameters(parallel), evaluated


def sorted_for(replicas: int, texts: list[Sample]) -> list[Sample]:
    """DistributedSampler deals text by text: in this order replica r gets the r-th part of each batch of `alone`."""
    parts = [texts[at : at + PER_REPLICA] for at in range(0, len(texts), PER_REPLICA)]
    rows = [parts[at : at + replicas] for at in range(0, len(parts), replicas)]
    return [text for row in rows for column in zip(*row, strict=True) for text in column]


def check(run: Callable[[Case], Outcome], case: Case, world: ProcessWorld, dtype: torch.dtype = torch.float64) -> None:
    losses, trained, evaluated = alone(case, dtype)
    bound = BOUND if dtype is torch.float64 else 1e-4
    for found_losses, found_trained, found_evaluated in world.run(run, case, timeout_s=150):
        assert found_losses == pytest.approx(losses, rel=bound)
        assert apart(found_trained, trained) < bound
        assert found_evaluated == pytest.approx(evaluated, rel=bound)


@pytest.fixture(scope="module")
def world() -> Iterator[ProcessWorld]:
    with ProcessWorld(2) as ranks:
        yield ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "run", "summed"),
    [
        ("accelerate", with_accelerate, "sp"),
        pytest.param("lightning_fabric", with_fabric, "ddp", marks=pytest.mark.slow),
        pytest.param("accelerate", with_accelerate, "ddp", marks=pytest.mark.slow),
        ("lightning_fabric", with_fabric, "sp"),
    ],
)
def test_two_ranks_of_one_sequence_train_as_one_process(package, run, summed, world):
    pytest.importorskip(package)
    check(run, Case(summed=summed), world)


@pytest.mark.slow
@pytest.mark.parametrize("summed", ["sp", "ddp"])
@pytest.mark.parametrize(("package", "run"), [("accelerate", with_accelerate), ("lightning_fabric", with_fabric)])
def test_two_replicas_of_two_ranks_train_as_one_process(package, run, summed):
    pytest.importorskip(package)
    with ProcessWorld(4) as world:
        check(run, Case(dp=2, summed=summed), world)


NO_DEEPSPEED = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="DeepSpeed is not installed: it builds itself, and more at its first run"
)


@NO_DEEPSPEED
@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("dp", [1, 2])
def test_deepspeed_trains_as_one_process(dp, stage):
    with ProcessWorld(2 * dp) as world:
        check(partial(with_deepspeed, stage=stage), Case(dp=dp), world, torch.float32)


@NO_DEEPSPEED
@pytest.mark.slow
def test_zero_3_is_refused():
    with ProcessWorld(2) as world, pytest.raises(RankFailedError, match="UnsupportedModelError"):
        world.run(partial(with_deepspeed, stage=3), Case(), timeout_s=150)


def early() -> str:
    from sp.frameworks import Replicas

    group = dist.group.WORLD
    assert group is not None
    model = sp.parallelize(make(), mesh=group)
    assert (Replicas.of(model).count, Replicas.of(model).firsts) == (1, (0,))
    # as of a model that was parallelized before there was a process group
    model.__dict__["options"] = replace(model.options, group="")
    with pytest.raises(StrategyError) as refused:
        Replicas.of(model)
    return str(refused.value)


def test_a_model_that_was_parallelized_too_early_is_refused(world):
    assert all("call torch.distributed.init_process_group before sp.parallelize" in said for said in world.run(early))


def test_replicas_need_no_process_group():
    from sp.frameworks import Replicas

    assert Replicas.of(sp.parallelize(make())) == Replicas((0,), 0, 1)


def test_of_each_replica_one_copy_is_taken():
    from sp.frameworks import Replicas

    gathered = torch.arange(24).view(12, 2)
    assert Replicas((0, 2, 3), 1, 6).once(gathered)[:, 0].tolist() == [0, 2, 8, 10, 12, 14]
