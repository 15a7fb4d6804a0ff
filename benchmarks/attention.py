"""Attention on 2 ranks of one thread each against one process of two threads, the bound beside each figure.

    python benchmarks/attention.py --length 16384 --repeats 5

Causal, float32, forward and backward.  All variants run in turn within one repetition, so that a busy machine slows
them alike; the figures are medians.  The bound is what perfect kernels and free communication would reach: ring's last
rank has work in every step, 2 ranks then need 3/4 of the time of one where striped and zigzag need 1/2.  Where ranks do
not wait for each other between steps, the one with the most work in all counts.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor

from sp.heads import share_heads
from sp.layout import LAYOUTS
from sp.mask import CAUSAL
from sp.plan import make_plan
from sp.runtime.ops.attention import attention
from sp.strategy import STRATEGIES, Strategy
from sp.testing import ProcessWorld

WORLD = 2
BATCH, HEADS, SIZE = 1, 8, 64
BUSY = 0.5  # runnable processes before the benchmark starts any


def make_inputs(length: int) -> list[Tensor]:
    """q, k, v and the gradient of the output, [batch, heads, length, size], laid out as a projection leaves them."""
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, length, HEADS, SIZE)
    return [torch.randn(shape, generator=generator).transpose(1, 2) for _ in range(4)]


def time_single(length: int) -> float:
    """Seconds of one forward and backward in this process."""
    q, k, v, grad = make_inputs(length)
    for x in (q, k, v):
        x.requires_grad_()
    start = time.perf_counter()
    F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)
    return time.perf_counter() - start


def time_rank(strategy: Strategy, length: int) -> float:
    """Seconds of one forward and backward on this rank, from a start in step with the others."""
    rank, world = dist.get_rank(), dist.get_world_size()
    positions = torch.tensor(LAYOUTS[strategy.layout].positions(length, rank, world))
    q, k, v, grad = (x.transpose(1, 2)[:, positions].transpose(1, 2) for x in make_inputs(length))
    for x in (q, k, v):
        x.requires_grad_()
    group = dist.group.WORLD
    assert group is not None
    dist.barrier()
    start = time.perf_counter()
    names = (strategy.layout, strategy.transport, "flash", group.group_name)
    out, _ = attention(q, k, v, [], str(CAUSAL), "", SIZE**-0.5, length, length, *names)
    out.backward(grad)
    return time.perf_counter() - start


def bound(strategy: Strategy, length: int) -> float:
    """Speed over the single process's when each step takes as long as its busiest rank; see the top for others."""
    if strategy.transport == "alltoall":
        return HEADS / WORLD / max(len(share.heads) for share in share_heads(HEADS, HEADS, WORLD))
    plans = [make_plan(strategy.layout, CAUSAL, length, WORLD, rank) for rank in range(WORLD)]
    if strategy.transport == "allgather":
        return sum(plan.area for plan in plans) / WORLD / max(plan.area for plan in plans)
    steps = zip(*(plan.steps for plan in plans), strict=True)
    busiest = sum(max(sum(tile.area for tile in step.tiles) for step in together) for together in steps)
    return sum(plan.area for plan in plans) / WORLD / busiest


def measure(length: int, repeats: int) -> dict[str, float]:
    """Median seconds of each variant; the first repetition warms up and does not count."""
    seconds: dict[str, list[float]] = {"single": [], **{name: [] for name in STRATEGIES}}
    with ProcessWorld(1, threads_per_rank=WORLD) as single, ProcessWorld(WORLD, threads_per_rank=1) as ranks:
        for _ in range(repeats + 1):
            seconds["single"] += single.run(time_single, length, timeout_s=600)
            for name, strategy in STRATEGIES.items():
                seconds[name].append(max(ranks.run(time_rank, strategy, length, timeout_s=600)))
    return {name: median(found[1:]) for name, found in seconds.items()}


def show(seconds: dict[str, float], length: int) -> str:
    single, ring = seconds["single"], seconds["ring"]
    rows = [["single, 2 threads", single, 1.0, None, None]]
    for name, strategy in STRATEGIES.items():
        found = seconds[name]
        rows.append([name, found, single / found, bound(strategy, length), ring / found])
    headers = ["", "seconds", "speed / single", "bound", "speed / ring"]
    return tabulate(rows, headers, floatfmt=("", ".2f", ".3f", ".3f", ".2f"), tablefmt="github")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=16384, help="tokens of the whole sequence")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions that count, after one that does not")
    arguments = parser.parse_args()
    print(f"attention of {arguments.length} tokens, {HEADS} heads of {SIZE}, float32, causal, forward + backward")
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"this machine is busy (load {load:.1f}): what waits for its slowest rank suffers more than the rest")
    print(show(measure(arguments.length, arguments.repeats), arguments.length))


if __name__ == "__main__":
    main()
