"""Hugging Face Accelerate, with sequences spread over ranks.

    torchrun --nproc-per-node 2 examples/with_accelerate.py
    torchrun --nproc-per-node 4 examples/with_accelerate.py --replicas 2

The only line of sp is `parallelize`; Accelerate's own `prepare_data_loader` is told that batches go to groups of ranks.
At the end the first rank asks the plain model for the same loss.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from bytes_llama import make_model, mean_loss, options, texts, verdict
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

import sp


def train(args: argparse.Namespace) -> tuple[list[float], nn.Module]:
    """The loss of each batch on this rank, and the trained model."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    ranks = accelerator.num_processes // args.replicas
    mesh = init_device_mesh("cpu", (args.replicas, ranks), mesh_dim_names=("dp", "sp"))
    model = sp.parallelize(make_model(), mesh=mesh["sp"], compile=args.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = prepare_data_loader(
        DataLoader(texts(64, args.length), batch_size=1, shuffle=True),
        accelerator.device,
        num_processes=args.replicas,
        process_index=mesh["dp"].get_local_rank(),
        put_on_device=True,
        rng_types=["generator"],  # all shuffle alike
    )
    model, optimizer = accelerator.prepare(model, optimizer)  # the loader is prepared
    losses: list[float] = []
    while len(losses) < args.steps:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == args.steps:
                break
    return losses, accelerator.unwrap_model(model)


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
