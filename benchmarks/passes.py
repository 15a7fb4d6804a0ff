"""Time of the passes against time of the capture, for a Llama of growing depth.

python benchmarks/passes.py --layers 4 8 16 32
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import torch
from tabulate import tabulate

from sp.models import Llama, LlamaConfig
from sp.passes import pipeline
from sp.passes.capture import capture
from sp.passes.manager import run_passes
from sp.program import Program
from sp.request import Request
from sp.strategy import find_strategy


def measure(layers: int) -> tuple[object, ...]:
    """Layers, nodes captured, seconds of capture, seconds of all passes, and the slowest pass."""
    model = Llama(LlamaConfig(layers=layers, width=64, heads=4, kv_heads=2, gqa="repeat_kv"))
    ids = torch.zeros(2, 256, dtype=torch.long)
    request = Request.of(model, (ids,), {"labels": ids}, 1)
    begin = time.perf_counter()
    program, _ = capture(model, request.call, request.tensors, sequence_dim=1, strategy=find_strategy("striped"))
    captured = time.perf_counter()
    stages = [("", captured)]

    def observe(stage: str, _: Program) -> None:
        stages.append((stage, time.perf_counter()))

    run_passes(program, pipeline(), observe)
    ended = stages[-1][1]
    spent = {name: at - before for (_, before), (name, at) in pairwise(stages)}
    slowest = max(spent, key=lambda name: spent[name])
    nodes = len(program.graph.nodes)
    return layers, nodes, captured - begin, ended - captured, f"{slowest} {spent[slowest]:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 8, 16, 32])
    options = parser.parse_args()
    measure(1)  # imports and caches
    headers = ("layers", "nodes", "capture s", "passes s", "slowest pass")
    print(tabulate([measure(layers) for layers in options.layers], headers=headers, floatfmt=".2f"))


if __name__ == "__main__":
    main()
