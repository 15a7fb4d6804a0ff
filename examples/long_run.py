"""Train on sequences that are too long for one rank: 131,072 bytes of Python's own sources on two ranks.

    python examples/long_run.py --world 2 --length 131072 --steps 2
    torchrun --nproc-per-node 2 examples/long_run.py --length 131072 --steps 2

No rank ever holds the activations of the whole sequence: each has its own tokens, computes their activations again in
backward (`checkpoint=True`) and leaves the logits where they are.  A step of 131,072 tokens is 3e13 operations of
attention alone: minutes on a few CPU cores.  `python -m benchmarks long` makes the table of length against memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from arguments import command, positive
from bytes_data import VOCABULARY, PythonSources
from torch import nn

import sp
from sp.models import Llama, LlamaConfig
from sp.testing import ProcessWorld


def make_model(args: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    model = Llama(LlamaConfig(VOCABULARY, layers=args.layers, heads=args.heads, kv_heads=args.heads, width=args.width))
    return sp.parallelize(
        model, args.strategy, compile=args.compile, checkpoint=args.checkpoint, outputs={"logits": "none"}
    )


def train(args: argparse.Namespace) -> tuple[list[float], int]:
    """The losses, and the most bytes that this process has held."""
    model, text, losses = make_model(args), PythonSources(), list[float]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        start = time.perf_counter()
        ids = text.batch(step, 1, args.length)  # the same on all ranks: bytes, no activations
        loss = model(ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if dist.get_rank() == 0:
            seconds = time.perf_counter() - start
            peak = peak_bytes() / 2**20
            print(f"step {step}: loss {losses[-1]:.4f}, {seconds:,.1f} s, peak {peak:,.0f} MiB", flush=True)
    return losses, peak_bytes()


def peak_bytes() -> int:
    """Code and libraries included.  Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def report(ranks: list[tuple[list[float], int]], args: argparse.Namespace) -> None:
    (losses, _), *others = ranks
    same = all(found == losses for found, _ in others)
    peaks = ", ".join(f"{peak / 2**20:,.0f}" for _, peak in ranks)
    print(f"{args.length:,} tokens on {len(ranks)} ranks: peak of each {peaks} MiB")
    print(f"losses {', '.join(f'{loss:.4f}' for loss in losses)}, {'equal' if same else 'NOT equal'} on all ranks")
    raise SystemExit(not same)


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--world", type=positive, default=2, help="ranks; under torchrun its --nproc-per-node counts")
    parser.add_argument("--length", type=positive, default=16384, help="tokens of the whole sequence")
    parser.add_argument("--steps", type=positive, default=2)
    parser.add_argument("--layers", type=positive, default=2)
    parser.add_argument("--width", type=positive, default=128)
    parser.add_argument("--heads", type=positive, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--checkpoint", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--timeout", type=float, default=4 * 3600.0, help="seconds until a hanging world is ended")
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
        found: list[tuple[list[float], int]] = [([], 0)] * dist.get_world_size()
        dist.all_gather_object(found, train(args))
        first = dist.get_rank() == 0
        dist.destroy_process_group()
        if first:
            report(found, args)
        return
    with ProcessWorld(args.world, threads_per_rank=1) as world:
        report(world.run(train, args, timeout_s=args.timeout), args)


if __name__ == "__main__":
    main()
