"""Peak memory of a rank where parameters are sharded by FSDP2 and sequences by sp, against a single device.

    python -m benchmarks memory_2d --lengths 2048 8192

`dp` × `sp` ranks train a Llama on `dp` sequences; the single device trains it on all of them.  Counted on the rank that
needs most, in its second step, from a process of its own:

* held: bytes of parameters (of the rank's shards) and of the optimizer's states, which are there before a step;
* tensors: held, and the most bytes of tensors alive at once in forward, backward and the optimizer's step;
* resident: the highest resident size in that step minus that before there was a model.  The C library's allocator
  keeps and fragments, and every rank has communication's own buffers; Linux alone can say it.

The bound divides everything by the number of ranks.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import sp
from benchmarks.memory import SINGLE
from benchmarks.picture import Chart, Series
from benchmarks.resident import MIB, forget_peak, resident_bytes
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from sp.models import Llama, LlamaConfig
from sp.testing.memory import most_alive_bytes
from sp.testing.ranks import run_processes

SHARDED, CHECKPOINTED = "FSDP × sp", "FSDP × sp, checkpoints"


@dataclass(frozen=True)
class Options:
    lengths: tuple[int, ...] = (2048, 4096, 8192)
    dp: int = 2
    sp: int = 2
    layers: int = 8
    width: int = 256
    compile: bool = False

    @property
    def config(self) -> LlamaConfig:
        return LlamaConfig(layers=self.layers, width=self.width, heads=8, kv_heads=4)


@dataclass(frozen=True)
class Job:
    """Two training steps.  kind: SINGLE trains the plain model on all sequences."""

    kind: str
    length: int
    options: Options


@dataclass(frozen=True)
class Found:
    """Bytes on the rank that needs most, and the loss of the second step."""

    held: int
    tensors: int
    resident: int
    loss: float


def measure(options: Options, kind: str, length: int) -> Found:
    world = 1 if kind == SINGLE else options.dp * options.sp
    ranks = run_processes(world, measure_rank, Job(kind, length, options), timeout_s=3000)
    most = [max(getattr(rank, field) for rank in ranks) for field in ("held", "tensors", "resident")]
    return Found(*most, sum(rank.loss for rank in ranks) / len(ranks))


def measure_rank(job: Job) -> Found:
    before = resident_bytes("VmRSS")
    model, ids = _prepare(job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _step(model, optimizer, ids)  # captures, and makes the optimizer's states
    gc.collect()
    held = sum(_bytes(value) for value in _lasting(model, optimizer))
    forget_peak()
    loss = _step(model, optimizer, ids)
    resident = resident_bytes("VmHWM") - before
    return Found(held, held + most_alive_bytes(lambda: _step(model, optimizer, ids)), resident, loss)


def _prepare(job: Job) -> tuple[nn.Module, Tensor]:
    """The model, and the sequences of this rank's replica."""
    torch.manual_seed(0)
    options, model = job.options, Llama(job.options.config)
    ids = torch.randint(0, 256, (options.dp, job.length), generator=torch.Generator().manual_seed(0))
    if job.kind == SINGLE:
        return torch.compile(model, dynamic=True) if options.compile else model, ids
    mesh = init_device_mesh("cpu", (options.dp, options.sp), mesh_dim_names=("dp", "sp"))
    sharded = sp.fully_shard(
        model, mesh, outputs={"logits": "none"}, compile=options.compile, checkpoint=job.kind == CHECKPOINTED
    )
    replica = mesh["dp"].get_local_rank()
    return sharded, ids[replica : replica + 1]


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> float:
    loss = model(ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def _lasting(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [*model.parameters(), *states]


def _bytes(value: Tensor) -> int:
    return (value.to_local() if isinstance(value, DTensor) else value).nbytes


def run(options: Options) -> Result:
    kinds = (SINGLE, SHARDED, CHECKPOINTED)
    found = {kind: [measure(options, kind, length) for length in options.lengths] for kind in kinds}
    rows: list[list[Cell]] = []
    for at, length in enumerate(options.lengths):
        whole = found[SINGLE][at]
        for kind in kinds:
            each, bound = found[kind][at], 1.0 if kind == SINGLE else 1 / (options.dp * options.sp)
            shares = each.tensors / whole.tensors, bound, each.resident / MIB, each.resident / max(1, whole.resident)
            rows.append([f"{length:,}", kind, each.held / MIB, each.tensors / MIB, *shares, each.loss])
    columns = {"tokens": "", "run": "", "held MiB": ".1f", "tensors MiB": ".1f", "of single": ".3f", "bound": ".3f"}
    columns |= {"resident MiB": ".1f", "resident of single": ".3f", "loss": ".6f"}
    title = f"peak memory of a rank, {options.dp} × {options.sp} ranks, {options.dp} sequences: {options.config}"
    series = [Series(kind, [each.tensors / MIB for each in found[kind]]) for kind in kinds]
    chart = Chart("tensors", "Peak memory of a rank", "tokens of a sequence", "MiB", options.lengths, series)
    return Result([Table(title, columns, rows)], [chart])


BENCHMARK = Benchmark(
    "peak memory of a rank under FSDP over dp × sp ranks against a single device's",
    Options(),
    Options(lengths=(64,), layers=1, width=32),
    run,
)
