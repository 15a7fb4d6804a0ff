"""Peak memory of a rank's training step under a window and on packed documents: it grows like the length.

    python benchmarks/masked_step.py --lengths 16384 32768 65536

transformers' Mistral and Llama, tiny, striped over 2 ranks of one thread.  Memory is the most bytes of tensors alive at
once during one forward and backward on the busier rank, weights and optimizer aside, counted by torch's profiler.  A
sequence × sequence mask of truths alone would be 4 GiB at 65,536 tokens.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from itertools import pairwise

import torch
import transformers
from tabulate import tabulate
from torch import Tensor, nn

import sp
from sp.testing import run_processes
from sp.testing.memory import most_alive_bytes

MIB = 2**20
SHAPE = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1 << 20, "use_cache": False}


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
    os.environ["KINETO_LOG_LEVEL"] = "99"  # or the profiler says on stderr that it starts and stops
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    return most_alive_bytes(step), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16384, 32768, 65536])
    parser.add_argument("--width", type=int, default=1024, help="tokens of the window; documents are about twice that")
    options = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    for kind, width in (("window", options.width), ("packed", 2 * options.width)):
        found = [run_processes(2, measure, Job(kind, length, width), timeout_s=1200) for length in options.lengths]
        memory = [max(bytes_ for bytes_, _ in ranks) / MIB for ranks in found]
        growth = [after / before for before, after in pairwise(memory)]
        seconds = [max(seconds for _, seconds in ranks) for ranks in found]
        rows.append(
            (kind, *(f"{mib:.0f}" for mib in memory), *(f"{factor:.2f}" for factor in growth), f"{seconds[-1]:.1f}")
        )
    columns = [f"{length:,}" for length in options.lengths]
    steps = [f"× at {column}" for column in columns[1:]]
    print("peak MiB of a rank, by length\n")
    print(
        tabulate(
            rows, headers=("mask", *columns, *steps, "s per longest step"), disable_numparse=True, stralign="right"
        )
    )


if __name__ == "__main__":
    main()
