"""Parameters sharded by FSDP2, sequences spread by sp, batches dealt to replicas: one mesh, one call.

    python examples/train_sharded.py --replicas 2 --ranks 2
    torchrun --nproc-per-node 4 examples/train_sharded.py --replicas 2 --ranks 2

A byte-level Llama on `replicas` × `ranks` processes: each replica has a batch of its own, whose sequence its ranks
share, and all of them share the parameters, gradients and states of the optimizer.  At the end the checkpoint that the
ranks have written together is read into a plain model in one process, and both are asked for the same loss.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from arguments import command, positive
from bytes_data import VOCABULARY, PythonSources
from tabulate import tabulate
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import sp
from sp.models import Llama, LlamaConfig
from sp.testing import ProcessWorld


def make_model(args: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    return Llama(LlamaConfig(VOCABULARY, layers=args.layers, width=args.width))


def train(args: argparse.Namespace, checkpoint: str) -> tuple[list[float], float, int]:
    """This rank's losses, the loss of the trained model, and the numbers that it holds of all parameters."""
    mesh = init_device_mesh("cpu", (args.replicas, args.ranks), mesh_dim_names=("dp", "sp"))
    model = sp.fully_shard(make_model(args), mesh, args.strategy, compile=args.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text, replica, losses = PythonSources(), mesh["dp"].get_local_rank(), list[float]()
    for step in range(args.steps):
        ids = text.batch(step * args.replicas + replica, 1, args.length)  # the same on all ranks of a replica
        loss = model(ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    held = sum(part.to_local().numel() for part in model.parameters() if isinstance(part, DTensor))
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=checkpoint)
    ids = text.batch(-1, 1, args.length)
    with torch.no_grad():
        last = model(ids, labels=ids).loss.item()
    return losses, last, held


def reload(args: argparse.Namespace, checkpoint: str) -> float:
    """The loss of a plain model in this process alone that has read the checkpoint."""
    model = make_model(args)
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    set_model_state_dict(model, state["model"])
    ids = PythonSources().batch(-1, 1, args.length)
    with torch.no_grad():
        return model(ids, labels=ids).loss.item()


def show(found: list[tuple[list[float], float, int]], args: argparse.Namespace, again: float) -> bool:
    """Print what the ranks say; whether the plain model agrees with them."""
    total = sum(parameter.numel() for parameter in make_model(args).parameters())
    rows = [
        (f"replica {rank // args.ranks}, rank {rank % args.ranks}", losses[0], losses[-1], f"{held / total:.0%}")
        for rank, (losses, _, held) in enumerate(found)
    ]
    print(tabulate(rows, ("", "first loss", "last loss", "of all parameters"), floatfmt=".4f", tablefmt="github"))
    close = all(abs(last - again) < 1e-4 for _, last, _ in found)
    print(f"the checkpoint in a plain model: loss {again:.4f}, {'the same' if close else f'not {found[0][1]:.4f}'}")
    return close


def with_processes(args: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as folder, ProcessWorld(args.replicas * args.ranks, threads_per_rank=1) as world:
        return show(world.run(train, args, folder, timeout_s=1800), args, reload(args, folder))


def with_torchrun(args: argparse.Namespace) -> bool:
    """The first rank shows and judges what all have found."""
    dist.init_process_group("gloo")
    folder = Path(tempfile.gettempdir()) / f"train_sharded_{os.environ['TORCHELASTIC_RUN_ID']}"
    found: list[tuple[list[float], float, int]] = [([], 0.0, 0)] * dist.get_world_size()
    dist.all_gather_object(found, train(args, str(folder)))
    good = dist.get_rank() > 0 or show(found, args, reload(args, str(folder)))
    dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        shutil.rmtree(folder)
    return good


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--replicas", type=positive, default=2, help="batches at a time")
    parser.add_argument("--ranks", type=positive, default=2, help="that share one sequence")
    parser.add_argument("--steps", type=positive, default=20)
    parser.add_argument("--length", type=positive, default=2048)
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--width", type=positive, default=128)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    good = with_torchrun(args) if "RANK" in os.environ else with_processes(args)
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
