"""Peak memory of a rank's training step under a window and on packed documents: it grows like the length.

    python -m benchmarks masked --lengths 16384 32768 65536

transformers' Mistral and Llama, tiny, striped over 2 ranks of one thread.  Memory is the most bytes of tensors alive at
once during one forward and backward on the busier rank, weights and optimizer aside, counted by torch's profiler.  A
sequence × sequence mask of truths alone would be 4 GiB at 65,536 tokens; the bound is growth like the length.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn

import sp
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from sp.testing import run_processes
from sp.testing.memory import most_alive_bytes

MIB = 2**20
SHAPE = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1 << 20, "use_cache": False}


@dataclass(frozen=True)
class Options:
    """width: tokens of the window; documents are about twice that."""

    lengths: tuple[int, ...] = (16384, 32768, 65536)
    width: int = 1024


@dataclass(frozen=True)
class Job:
    """kind: window or packed.  width: how far a query looks back, at most or about."""

    kind: str
    length: int
    width: int


def make_model(job: Job) -> nn.Module:
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    if job.kind == "window":
        config = transformers.MistralConfig(**SHAPE, **HEADS, sliding_window=job.width)
        return transformers.MistralForCausalLM(config)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, **HEADS))


def inputs(job: Job) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 256, (1, job.length), generator=random)
    found = {"input_ids": ids, "labels": ids.clone()}
    if job.kind == "packed":
        count = 2 * job.length // job.width + 1
        lengths = torch.randint(job.width // 2, job.width * 3 // 2, (count,), generator=random)
        places = torch.cat([torch.arange(length) for length in lengths.tolist()])
        found["position_ids"] = places[: job.length][None]
    return found


def measure(job: Job) -> tuple[int, float]:
    """Bytes and seconds of one step on this rank."""
    model = sp.parallelize(make_model(job), compile=False)
    given = inputs(job)

    def step() -> None:
        model.zero_grad()
        model(**given).loss.backward()

    step()
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    return most_alive_bytes(step), seconds


def run(options: Options) -> Result:
    lengths = options.lengths
    rows: list[list[Cell]] = []
    for kind, width in (("window", options.width), ("packed", 2 * options.width)):
        found = [run_processes(2, measure, Job(kind, length, width), timeout_s=1200) for length in lengths]
        memory = [max(bytes_ for bytes_, _ in ranks) / MIB for ranks in found]
        seconds = max(seconds for _, seconds in found[-1])
        rows.append([kind, *memory, memory[-1] / memory[0], lengths[-1] / lengths[0], seconds])
    columns = {"mask": "", **{f"{length:,}": ".1f" for length in lengths}}
    columns |= {"last / first": ".2f", "bound": ".2f", "s per longest step": ".1f"}
    return Result([Table("peak MiB of a rank's training step, by tokens", columns, rows)])


BENCHMARK = Benchmark(
    "peak memory of a training step under a window and on packed documents, by length",
    Options(),
    Options(lengths=(96, 192), width=16),
    run,
)
