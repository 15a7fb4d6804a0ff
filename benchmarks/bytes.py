"""Bytes that a training step sends, counted at the communicator, against what the report says.

    python -m benchmarks bytes --heads 8 --kv-heads 8 4 2 1

Counted is what leaves the rank that sends most: by attention in forward and in backward, and by everything else
(gradients' sums as a ring of reductions would send them, outputs that are gathered).  Nothing is timed: ranks are
threads.  `forward of as many` compares with as many key heads as query heads: a ring moves keys and values as the model
has them, so that its bound is their ratio, 0.25 for 8:2.  Where queries and outputs travel too it is 1, and less is
better.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import sp
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from benchmarks.watch import Watch, watched
from sp.models import Llama, LlamaConfig
from sp.runtime.world import World
from sp.strategy import find_strategy
from sp.testing import run_ranks


@dataclass(frozen=True)
class Options:
    strategies: tuple[str, ...] = ("striped", "zigzag", "allgather", "ulysses")
    heads: int = 8
    kv_heads: tuple[int, ...] = (8, 4, 2, 1)
    world: int = 4
    length: int = 1024
    layers: int = 2
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class Found:
    """Bytes of the rank that sends most.  forward, backward: of all attentions.  rest: of everything else."""

    forward: int
    backward: int
    reported_forward: int
    reported_backward: int
    rest: int


def measure(options: Options, strategy: str, kv_heads: int) -> Found:
    config = LlamaConfig(layers=options.layers, heads=options.heads, kv_heads=kv_heads, width=16 * options.heads)
    model = Llama(config).to(getattr(torch, options.dtype))
    ids = torch.zeros(1, options.length, dtype=torch.long)
    watches: dict[tuple[int, str], Watch] = defaultdict(Watch)
    kinds = dict.fromkeys(range(options.world), "forward")

    def watch_of(world: World, module: str) -> Watch:
        return watches[world.rank, kinds[world.rank] if module == "attention" else "rest"]

    def train(group: dist.ProcessGroup) -> dict[str, Any]:
        parallel = sp.parallelize(copy.deepcopy(model), strategy, mesh=group, compile=False)
        loss = parallel(ids, labels=ids).loss
        kinds[group.rank()] = "backward"
        loss.backward()
        return parallel.report().as_dict()

    with watched(watch_of):
        report, *_ = run_ranks(options.world, train, timeout_s=600)
    most = {kind: max(watches[rank, kind].sent for rank in kinds) for kind in ("forward", "backward", "rest")}
    reported = [
        sum(max(each[key]) * each["count"] for each in report["attentions"])
        for key in ("sent_forward", "sent_backward")
    ]
    return Found(most["forward"], most["backward"], *reported, most["rest"])


def run(options: Options) -> Result:
    rows: list[list[Cell]] = []
    for strategy in options.strategies:
        found = {kv_heads: measure(options, strategy, kv_heads) for kv_heads in options.kv_heads}
        moves_queries = find_strategy(strategy).transport == "alltoall"
        whole = found.get(options.heads)
        for kv_heads, each in found.items():
            bound = 1.0 if moves_queries else kv_heads / options.heads
            share = None if whole is None else each.forward / whole.forward
            counted = [each.forward, each.reported_forward, each.backward, each.reported_backward]
            rows.append([strategy, f"{options.heads}:{kv_heads}", *counted, share, bound, each.rest])
    columns = {"": "", "heads": "", "forward": ",", "reported": ",", "backward": ",", "reported ": ","}
    columns |= {"forward of as many": ".3f", "bound": ".3f", "everything else": ","}
    facts = f"{options.layers} layers, {options.length:,} tokens, {options.dtype}, {options.world} ranks"
    return Result([Table(f"bytes sent in a training step by the busiest rank: {facts}", columns, rows)])


BENCHMARK = Benchmark(
    "bytes of a training step counted at the communicator, against the report, by key heads",
    Options(),
    Options(heads=4, kv_heads=(4, 1), world=3, length=18, layers=1, dtype="float32"),
    run,
)
