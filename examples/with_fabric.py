"""Lightning Fabric, with sequences spread over ranks.

    torchrun --nproc-per-node 2 examples/with_fabric.py
    torchrun --nproc-per-node 4 examples/with_fabric.py --replicas 2

The only line of sp is `parallelize`; torch's DistributedSampler is told that batches go to groups of ranks, and Fabric
leaves such a sampler as it is.  At the end the first rank asks the plain model for the same loss.
"""

from __future__ import annotations

import argparse
import os

import torch
from bytes_llama import make_model, mean_loss, options, texts, verdict
from lightning_fabric import Fabric
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import sp


def train(args: argparse.Namespace) -> tuple[list[float], nn.Module]:
    """The loss of each batch on this rank, and the trained model."""
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]))
    fabric.launch()
    mesh = init_device_mesh("cpu", (args.replicas, fabric.world_size // args.replicas), mesh_dim_names=("dp", "sp"))
    parallel = sp.parallelize(make_model(), mesh=mesh["sp"], compile=args.compile)
    model, optimizer = fabric.setup(parallel, torch.optim.AdamW(parallel.parameters(), lr=1e-3))
    data = texts(64, args.length)
    sampler = DistributedSampler(data, num_replicas=args.replicas, rank=mesh["dp"].get_local_rank())
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=1, sampler=sampler))
    losses: list[float] = []
    for epoch in range(args.steps):
        sampler.set_epoch(epoch)
        for batch in loader:
            accumulating = len(losses) % 2 == 0
            with fabric.no_backward_sync(model, enabled=accumulating):
                loss = model(**batch).loss
                fabric.backward(loss / 2)
            losses.append(loss.item())
            if not accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
            if len(losses) == args.steps:
                return losses, parallel
    raise AssertionError("an epoch has at least one batch")


def main() -> None:
    args = options(__doc__)
    losses, model = train(args)
    others = texts(4, args.length, seed=1)
    loss = mean_loss(model, others)
    good = torch.distributed.get_rank() > 0 or verdict(losses, loss, mean_loss(model.plain, others))
    torch.distributed.destroy_process_group()
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
