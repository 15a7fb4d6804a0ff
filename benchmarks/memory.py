"""Peak memory of one training step: a rank of a world of 2 against a single device, weights aside.

    python benchmarks/memory.py --length 16384

Two figures, both from a process of its own, after a warm-up step on a short sequence:

* tensors: the most bytes of tensors alive at once during one forward and backward, counted by torch's profiler;
* resident: the highest resident size during the step minus that before it.  It adds what the C library's allocator
  keeps and fragments, which differs from run to run.

Weights, inputs and code are there before and do not count; the weights' gradients do.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from tabulate import tabulate

import sp
from sp.models import Llama, LlamaConfig
from sp.testing.memory import most_alive_bytes
from sp.testing.ranks import run_processes

MIB = 2**20


@dataclass(frozen=True)
class Job:
    """One training step to measure.  strategy: None trains the plain model on a single device."""

    strategy: str | None
    length: int
    layers: int
    width: int
    compile: bool


def resident_bytes(field: str) -> int:
    """A field of /proc/self/status: VmRSS is the size now, VmHWM the highest so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def step(model: torch.nn.Module, length: int) -> float:
    ids = torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return float(loss.detach())


def measure(job: Job) -> tuple[int, int, float]:
    """Bytes that one training step needs on this rank, resident and in tensors, and its loss."""
    torch.manual_seed(0)
    model = Llama(LlamaConfig(layers=job.layers, width=job.width, heads=8, kv_heads=4))
    if job.strategy is not None:
        model = sp.parallelize(model, job.strategy, compile=job.compile)
    elif job.compile:
        model = torch.compile(model, dynamic=True)
    step(model, 64)
    before = resident_bytes("VmRSS")
    loss = step(model, job.length)
    resident = resident_bytes("VmHWM") - before
    return resident, most_alive_bytes(lambda: step(model, job.length)), loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--compile", action="store_true", help="measure the compiled step, not the eager one")
    options = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    single = (0, 0)
    for strategy in (None, "striped", "zigzag", "ring"):
        job = Job(strategy, options.length, options.layers, options.width, options.compile)
        found = run_processes(1 if strategy is None else 2, measure, job, timeout_s=1500)
        peaks = tuple(max(rank[place] for rank in found) for place in (0, 1))
        single = peaks if strategy is None else single
        figures = [(f"{peaks[i] / MIB:.0f}", f"{peaks[i] / single[i]:.3f}") for i in (1, 0)]
        rows.append((strategy or "single device", *figures[0], *figures[1], f"{found[0][2]:.6f}"))
    print(tabulate(rows, headers=("run", "tensors MiB", "of single", "resident MiB", "of single", "loss")))


if __name__ == "__main__":
    main()
