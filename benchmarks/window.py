"""Windows and packed documents on 2 ranks of one thread each: how much of causal attention's time and memory they save.

    python benchmarks/window.py --length 32768 --repeats 3
    python benchmarks/window.py --memory --lengths 16384 32768 65536

Float32, forward and backward of one attention.  All variants run in turn within one repetition, so that a busy machine
slows them alike; the figures are medians over the slower rank.  `of the pairs` is the part of causal's pairs of a query
and a key that the mask leaves: what perfect skipping would reach.  Memory is the most bytes of tensors alive at once on
a rank, inputs aside, counted by torch's profiler; it must grow like the length, not like its square.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.distributed as dist
from tabulate import tabulate
from torch import Tensor

from sp.layout import LAYOUTS
from sp.runtime.ops.attention import attention
from sp.testing import ProcessWorld
from sp.testing.memory import most_alive_bytes

WORLD = 2
SIZE = 64
DOCUMENTS = "l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a"


@dataclass(frozen=True)
class Job:
    """One attention of a rank.  kind: causal, window or packed; width: how far a query looks back, at most or about."""

    kind: str
    layout: str
    length: int
    heads: int
    width: int


def document_ids(length: int, width: int) -> Tensor:
    """Documents of random lengths between half and one and a half of `width`, numbered along the sequence."""
    lengths = torch.randint(width // 2, width + width // 2, (2 * length // width + 1,), generator=seeded())
    return torch.arange(len(lengths)).repeat_interleave(lengths)[:length]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def visible_pairs(job: Job) -> int:
    """How many pairs of a query and a key the mask leaves."""
    if job.kind == "packed":
        return sum(n * (n + 1) // 2 for n in document_ids(job.length, job.width).bincount().tolist())
    return job.length * job.width - job.width * (job.width - 1) // 2


def prepare(job: Job) -> tuple[list[Tensor], tuple[object, ...]]:
    """q, k, v, the gradient of the output of this rank, and the op's other arguments."""
    group = dist.group.WORLD
    assert group is not None
    local = LAYOUTS[job.layout].local_length(job.length, dist.get_rank(), WORLD)
    tensors = [torch.randn((1, local, job.heads, SIZE), generator=seeded()).transpose(1, 2) for _ in range(4)]
    leaves: list[Tensor] = []
    if job.kind == "packed":
        ids = document_ids(job.length, job.width)
        leaves = [ids.view(1, 1, -1, 1), ids.view(1, 1, 1, -1)]
    mask = f"window({job.width - 1}, 0)" if job.kind == "window" else "causal"
    lengths = (job.length, job.length)
    score = DOCUMENTS if leaves else ""
    return tensors, (leaves, mask, score, SIZE**-0.5, *lengths, job.layout, "ring", "flash", group.group_name)


def step(tensors: list[Tensor], how: tuple[object, ...]) -> None:
    q, k, v = (x.detach().requires_grad_() for x in tensors[:3])
    out, _ = attention(q, k, v, *how)
    out.backward(tensors[3])


def time_rank(job: Job) -> float:
    """Seconds of one forward and backward on this rank, from a start in step with the others."""
    tensors, how = prepare(job)
    dist.barrier()
    start = time.perf_counter()
    step(tensors, how)
    return time.perf_counter() - start


def memory_rank(job: Job) -> int:
    tensors, how = prepare(job)
    return most_alive_bytes(lambda: step(tensors, how))


def compare_times(length: int, heads: int, window: int, document: int, repeats: int) -> str:
    widths = {"causal": length, "window": window, "packed": document}
    jobs = [Job(kind, layout, length, heads, width) for layout in LAYOUTS for kind, width in widths.items()]
    seconds: dict[Job, list[float]] = {job: [] for job in jobs}
    with ProcessWorld(WORLD, threads_per_rank=1) as ranks:
        for repeat in range(repeats + 1):
            for job in jobs:
                short = replace(job, length=min(length, 4096))
                took = max(ranks.run(time_rank, job if repeat else short, timeout_s=1200))
                seconds[job] += [took] if repeat else []
    rows: list[tuple[object, ...]] = []
    for job in jobs:
        causal = replace(job, kind="causal", width=length)
        took, whole, part = median(seconds[job]), median(seconds[causal]), visible_pairs(job) / visible_pairs(causal)
        rows.append((job.layout, job.kind, took, whole / took, part, part * whole / took))
    headers = ("layout", "mask", "seconds", "speed / causal", "of the pairs", "of perfect skipping")
    return tabulate(rows, headers, floatfmt=("", "", ".2f", ".1f", ".3f", ".2f"), tablefmt="github")


def compare_memory(lengths: list[int], heads: int, window: int, document: int) -> str:
    rows: list[tuple[object, ...]] = []
    with ProcessWorld(WORLD, threads_per_rank=1) as ranks:
        for kind, width in (("window", window), ("packed", document)):
            for layout in LAYOUTS:
                jobs = [Job(kind, layout, length, heads, width) for length in lengths]
                most = [max(ranks.run(memory_rank, job, timeout_s=1200)) / 2**20 for job in jobs]
                rows.append((layout, kind, *(f"{mib:.0f}" for mib in most), f"{most[-1] / most[0]:.2f}"))
    return tabulate(rows, ("layout", "mask", *(f"{n} tokens: MiB" for n in lengths), "last / first"), tablefmt="github")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=32768, help="tokens of the whole sequence")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--window", type=int, default=1024, help="tokens that a query sees, itself among them")
    parser.add_argument("--document", type=int, default=2000, help="tokens of a document, on average")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions that count, after one on a short sequence")
    parser.add_argument("--memory", action="store_true", help="measure memory at several lengths, not time at one")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16384, 32768, 65536])
    options = parser.parse_args()
    print(f"{options.heads} heads of {SIZE}, a window of {options.window}, documents of about {options.document} tokens")
    if options.memory:
        print(compare_memory(options.lengths, options.heads, options.window, options.document))
    else:
        print(compare_times(options.length, options.heads, options.window, options.document, options.repeats))


if __name__ == "__main__":
    main()
