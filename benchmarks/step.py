"""A whole training step on 2 ranks of one thread each against one process of two threads, the bound beside each figure.

    python benchmarks/step.py --length 16384 --repeats 3

A Llama of 4 layers in float32, compiled: forward, loss, backward and the optimizer's step.  All variants run in turn
within one repetition, so that a busy machine slows them alike; the figures are medians.  `sp, world 1` is
`sp.parallelize` in a world of one rank, whose time over the plain model's is what the compiler's ops cost.

The bound takes attention's share of the single step as measured in the same run, the rest as perfectly divided.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

import torch
from tabulate import tabulate
from torch import Tensor, nn

import sp
from sp.models.llama import Llama, LlamaConfig
from sp.testing import ProcessWorld

WORLD = 2
PLAIN, ALONE = "plain, 2 threads", "sp, world 1"


@dataclass(frozen=True)
class Job:
    """What is trained, and how: `strategy` is a name of STRATEGIES, or PLAIN."""

    strategy: str
    length: int
    config: LlamaConfig


@lru_cache(maxsize=8)
def prepare(job: Job) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    """The compiled model, its optimizer and its ids; kept by the process between calls."""
    torch.manual_seed(0)
    model = Llama(job.config)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, job.config.vocab_size, (1, job.length))
    made = torch.compile(model, dynamic=True) if job.strategy == PLAIN else sp.parallelize(model, job.strategy)
    return made, optimizer, ids


def step(job: Job) -> float:
    """Seconds of one training step of this rank."""
    model, optimizer, ids = prepare(job)
    start = time.perf_counter()
    optimizer.zero_grad()
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    return time.perf_counter() - start


def measure(base: Job, strategies: list[str], repeats: int) -> dict[str, list[float]]:
    """Seconds of each variant in each repetition, of its slowest rank; the first two warm up and do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in (PLAIN, ALONE, *strategies)}
    with ProcessWorld(1, threads_per_rank=WORLD) as single, ProcessWorld(WORLD, threads_per_rank=1) as ranks:
        for _ in range(repeats + 2):
            seconds[PLAIN] += single.run(step, replace(base, strategy=PLAIN), timeout_s=900)
            seconds[ALONE] += single.run(step, replace(base, strategy="striped"), timeout_s=900)
            for name in strategies:
                seconds[name].append(max(ranks.run(step, replace(base, strategy=name), timeout_s=900)))
    return {name: found[2:] for name, found in seconds.items()}


def show(seconds: dict[str, list[float]]) -> str:
    plain, ring = median(seconds[PLAIN]), median(seconds.get("ring", [0.0]))
    rows = [
        (name, middle := median(found), max(found) / min(found) - 1, plain / middle, ring / middle or None)
        for name, found in seconds.items()
    ]
    headers = ["", "seconds", "spread", "speed / plain", "speed / ring"]
    return tabulate(rows, headers, floatfmt=("", ".2f", ".3f", ".3f", ".3f"), tablefmt="github")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=16384, help="tokens of the whole sequence")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions that count, after two that do not")
    parser.add_argument("--strategies", nargs="*", default=["ring", "striped", "zigzag", "ulysses"])
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    heads = options.width // 64
    config = LlamaConfig(width=options.width, heads=heads, kv_heads=max(1, heads // 4))
    print(f"a training step of {options.length} tokens: {config}", flush=True)
    print(show(measure(Job(PLAIN, options.length, config), options.strategies, options.repeats)))


if __name__ == "__main__":
    main()
