"""A training loop as torchtitan's users write theirs; the lines that sequence parallelism adds are marked `# sp`.

    torchrun --nproc-per-node 4 examples/titan_loop.py --dp 2 --sp 2
    torchrun --nproc-per-node 2 examples/titan_loop.py --dp 1 --sp 2 --steps 40          # goes on from the checkpoint

A mesh of replicas and of ranks that share a sequence, FSDP2 block by block with a policy of mixed precision, gradients
accumulated over parts of a batch and clipped, a schedule of the learning rate, checkpoints of everything that the run
is, from which it goes on on any other mesh, and a line of figures for each step.  Losses are those of one rank, up to
the rounding of the dtype.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from arguments import one_axis
from bytes_data import VOCABULARY, PythonSources
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

import sp
from sp.models import Llama, LlamaConfig


def build(args: argparse.Namespace, mesh: DeviceMesh) -> nn.Module:
    """The model with its parameters sharded over all ranks, its sequence over those along "sp"."""
    torch.manual_seed(0)
    model = Llama(LlamaConfig(VOCABULARY, layers=args.layers, width=args.width)).to(mesh.device_type)
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, args.dtype), reduce_dtype=torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh._flatten("all"), mp_policy=policy)
        module.set_gradient_divide_factor(args.dp)  # sp: a mean over replicas, a sum over the ranks of a sequence
        module.set_force_sum_reduction_for_comms(mesh.device_type == "cpu")  # gloo cannot multiply
    return sp.parallelize(model, args.strategy, mesh=mesh["sp"], sync_gradients=False, compile=args.compile)  # sp


@dataclass
class Run(Stateful):
    """All that a checkpoint holds.  step: how many are done, which is also the place in the data."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: LRScheduler
    step: int = 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "schedule": self.schedule.state_dict(), "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]


@dataclass(frozen=True)
class Checkpoints:
    """Folders named by their step; the latest is where a run begins."""

    folder: Path

    def save(self, run: Run) -> None:
        dcp.save({"run": run}, checkpoint_id=self.folder / f"step-{run.step}")

    def resume(self, run: Run) -> None:
        steps = [int(path.parent.name.removeprefix("step-")) for path in self.folder.glob("step-*/.metadata")]
        if steps:
            dcp.load({"run": run}, checkpoint_id=self.folder / f"step-{max(steps)}")


def warm_up_and_decay(step: int, args: argparse.Namespace) -> float:
    """Of the learning rate: linear up, then a cosine to a tenth."""
    if step < args.warmup:
        return (step + 1) / args.warmup
    done = min(1.0, (step - args.warmup) / max(1, args.decay - args.warmup))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Batches:
    """The rows of each step that belong to this rank's replica, in parts.  Ranks of one sequence get the same."""

    replica: int
    replicas: int
    rows: int
    length: int
    parts: int
    device: str
    text: PythonSources = field(default_factory=PythonSources)

    def of(self, step: int) -> tuple[Tensor, ...]:
        rows = self.text.batch(step, self.rows, self.length).to(self.device)
        return rows.chunk(self.replicas)[self.replica].chunk(self.parts)


def train_step(run: Run, parts: tuple[Tensor, ...], clip: float) -> tuple[Tensor, Tensor]:
    """The mean loss of this replica's rows, and the norm of the gradients of all."""
    losses = list[Tensor]()
    for number, ids in enumerate(parts, 1):
        run.model.set_requires_gradient_sync(number == len(parts))  # summed over the ranks once
        loss = run.model(ids, labels=ids).loss / len(parts)
        loss.backward()
        losses.append(loss.detach())
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), clip)
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.schedule.step()
    run.step += 1
    return torch.stack(losses).sum(), norm.full_tensor() if isinstance(norm, DTensor) else norm


def memory() -> int:
    """MiB: the most that this process has held."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() >> 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def figures(run: Run, loss: Tensor, norm: Tensor, rate: float, mesh: DeviceMesh) -> str:
    """rate: tokens in a second.  The loss is the mean of all replicas'."""
    dist.all_reduce(loss, group=mesh.get_group("dp"))
    mean, lr = loss.item() / mesh["dp"].size(), run.schedule.get_last_lr()[0]
    held = f"{memory()} MiB"
    return f"step {run.step:3d}  loss {mean:.6f}  norm {norm.item():.4f}  lr {lr:.2e}  {rate:8,.0f} tokens/s  {held}"


def train(args: argparse.Namespace, mesh: DeviceMesh) -> Iterator[str]:
    """A line for each step."""
    model = build(args, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    run = Run(model, optimizer, LambdaLR(optimizer, lambda step: warm_up_and_decay(step, args)))
    checkpoints = Checkpoints(args.folder)
    checkpoints.resume(run)
    batches = Batches(mesh["dp"].get_local_rank(), args.dp, args.rows, args.length, args.parts, mesh.device_type)
    while run.step < args.steps:
        begin = time.perf_counter()
        loss, norm = train_step(run, batches.of(run.step), args.clip)
        rate = args.rows * args.length / (time.perf_counter() - begin)
        yield figures(run, loss, norm, rate, mesh)
        if run.step % args.every == 0:
            checkpoints.save(run)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dp", type=int, default=1, help="replicas")
    parser.add_argument("--sp", type=int, default=1, help="ranks that share a sequence")
    parser.add_argument("--strategy", default="striped", type=one_axis)
    parser.add_argument("--dtype", default="bfloat16", help="of the computation; parameters are float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=4, help="sequences in a step, of all replicas")
    parser.add_argument("--parts", type=int, default=2, help="backwards for a step")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--decay", type=int, default=1000, help="the step at which the learning rate is at its least")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--folder", type=Path, default=Path("out/titan_loop"))
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --nproc-per-node 4 examples/titan_loop.py --dp 2 --sp 2")
    if args.rows % (args.dp * args.parts):
        parser.error(f"--rows must be a multiple of {args.dp * args.parts}, replicas times parts")
    return args


def main() -> None:
    args = parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh(device, (args.dp, args.sp), mesh_dim_names=("dp", "sp"))  # sp: an axis of the mesh
    for line in train(args, mesh):
        if dist.get_rank() == 0:
            print(line, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
