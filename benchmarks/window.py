"""Windows and packed documents on 2 ranks of one thread each: how much of causal attention's time and memory they save.

    python -m benchmarks window --length 32768 --repeats 3 --memory-lengths 16384 32768 65536

Float32, forward and backward of one attention, on the slower rank.  `of the pairs` is the part of causal's pairs of a
query and a key that the mask leaves; the bound of the speed is its inverse, what perfect skipping would reach.  Memory
is the most bytes of tensors alive at once on a rank, inputs aside, counted by torch's profiler; it must grow like the
length, not like its square.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from benchmarks.timing import in_turn
from sp.layout import find_layout
from sp.runtime.ops.attention import attention
from sp.testing import ProcessWorld
from sp.testing.memory import most_alive_bytes

WORLD = 2
SIZE = 64
DOCUMENTS = "l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a"


@dataclass(frozen=True)
class Options:
    """window: tokens that a query sees, itself among them.  document: tokens of one, on average."""

    length: int = 32768
    memory_lengths: tuple[int, ...] = (16384, 32768, 65536)
    layouts: tuple[str, ...] = ("contiguous", "striped", "zigzag")
    heads: int = 4
    window: int = 1024
    document: int = 2000
    repeats: int = 3

    @property
    def widths(self) -> dict[str, int]:
        return {"window": self.window, "packed": self.document}


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
    local = find_layout(job.layout).local_length(job.length, dist.get_rank(), WORLD)
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


def compare_times(ranks: ProcessWorld, options: Options) -> Table:
    widths = {"causal": options.length, **options.widths}
    jobs = [
        Job(kind, layout, options.length, options.heads, width)
        for layout in options.layouts
        for kind, width in widths.items()
    ]

    def slowest(job: Job) -> float:
        return max(ranks.run(time_rank, job, timeout_s=1200))

    seconds = in_turn({job: partial(slowest, job) for job in jobs}, options.repeats)
    rows: list[list[Cell]] = []
    for job, took in seconds.items():
        causal = replace(job, kind="causal", width=options.length)
        part = visible_pairs(job) / visible_pairs(causal)
        rows.append([job.layout, job.kind, took, part, seconds[causal] / took, 1 / part])
    columns = {"layout": "", "mask": "", "seconds": ".2f", "of the pairs": ".3f", "speed / causal": ".1f"}
    return Table(f"{options.length:,} tokens, forward + backward", columns | {"bound": ".1f"}, rows)


def compare_memory(ranks: ProcessWorld, options: Options) -> Table:
    lengths = options.memory_lengths
    rows: list[list[Cell]] = []
    for kind, width in options.widths.items():
        for layout in options.layouts:
            jobs = [Job(kind, layout, length, options.heads, width) for length in lengths]
            most = [max(ranks.run(memory_rank, job, timeout_s=1200)) / 2**20 for job in jobs]
            rows.append([layout, kind, *most, most[-1] / most[0], lengths[-1] / lengths[0]])
    columns = {"layout": "", "mask": "", **{f"{length:,}": ".1f" for length in lengths}}
    return Table("MiB of a rank, by tokens", columns | {"last / first": ".2f", "bound": ".2f"}, rows)


def run(options: Options) -> Result:
    with ProcessWorld(WORLD) as ranks:
        return Result([compare_times(ranks, options), compare_memory(ranks, options)])


BENCHMARK = Benchmark(
    "attention under windows and on packed documents: time and memory of causal attention's",
    Options(),
    Options(length=256, memory_lengths=(128, 256), layouts=("striped",), heads=1, window=32, document=40, repeats=1),
    run,
)
