"""What each call of a parallelized model pays before ranks exchange any data: CPU time of rank 0.

    python -m benchmarks handshake --layers 32 --worlds 1 2

Models are as narrow as they can be: it is the number of modules and tensors that counts.  Processor time is what a busy
machine changes least, yet it may double there: compare figures of one run.  The bound of a call is one look at each
attribute and each tensor of the model; that of a checksum is torch's own sum of as many numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

import sp
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from benchmarks.timing import Samples, in_turn
from sp.handshake import Handshake
from sp.inventory import Inventory
from sp.models import GPT, GPTConfig
from sp.request import Request
from sp.runtime.agreement import Statement, exchange_statements
from sp.runtime.checksums import sums
from sp.runtime.world import find_world
from sp.testing import run_processes

LENGTH = 64


@dataclass(frozen=True)
class Options:
    models: tuple[str, ...] = ("gpt", "llama")
    layers: tuple[int, ...] = (32,)
    worlds: tuple[int, ...] = (1, 2)
    calls: int = 100
    repeats: int = 7
    millions: tuple[int, ...] = (1, 10, 100)


@dataclass(frozen=True)
class Found:
    """first: milliseconds of the first call, before capture.  parts: those of later calls, and of what they do."""

    modules: int
    tensors: int
    first: float
    parts: Mapping[str, Samples]


def gpt(layers: int) -> nn.Module:
    return GPT(GPTConfig(layers=layers, heads=2, width=16))


def llama(layers: int) -> nn.Module:
    """transformers' own, which has more modules."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=layers, **sizes))


MODELS: dict[str, Callable[[int], nn.Module]] = {"gpt": gpt, "llama": llama}


def measure(name: str, layers: int, calls: int, repeats: int) -> Found:
    """On one rank of the default group, or without any."""
    torch.manual_seed(0)
    model = MODELS[name](layers)
    parallel = sp.parallelize(model, compile=False)
    shake = Handshake(find_world(parallel.options.group), torch.device("cpu"))
    ids = torch.arange(LENGTH).view(1, LENGTH)
    args, kwargs = (ids,), {"labels": ids}

    def call() -> object:
        return parallel.accord.on_call(shake, (args, kwargs), parallel.options, parallel.executables, None)

    first = _milliseconds(call, 1)
    held, granted = Inventory.of(model), parallel.accord.granted
    state = granted.state(held)
    parts: dict[str, Callable[[], object]] = {
        "later calls": call,
        "walk": lambda: Inventory.of(model),
        "state": lambda: granted.state(held),
        "taken apart": lambda: Request.of(model, args, kwargs, 1, state),
        "all-gather": lambda: exchange_statements(shake.world, Statement(), shake.device),
        "bound": lambda: _look(held),
    }
    # After a few calls, large contents are compared no more.
    in_time = {part: lambda run=run: _milliseconds(run, calls) for part, run in parts.items()}
    found = in_turn(in_time, repeats)
    return Found(len(held.modules), len(held.parameters) + len(held.buffers), first, found)


def _look(held: Inventory) -> int:
    """At each attribute and each tensor."""
    seen = 0
    for _, module in held.modules:
        for value in vars(module).values():
            seen += value is None
    return seen + sum(tensor.dtype == torch.bool for tensor in (*held.parameters.values(), *held.buffers.values()))


def _milliseconds(run: Callable[[], object], calls: int) -> float:
    begin = time.process_time()
    for _ in range(calls):
        run()
    return 1e3 * (time.process_time() - begin) / calls


def of_calls(options: Options) -> Table:
    rows: list[list[Cell]] = []
    for name in options.models:
        for layers in options.layers:
            for world in options.worlds:
                given = (name, layers, options.calls, options.repeats)
                found = measure(*given) if world == 1 else run_processes(world, measure, *given)[0]
                sizes: list[Cell] = [name, layers, world, found.modules, found.tensors]
                rows.append([*sizes, found.first, *found.parts.values()])
    parts = ("later calls", "of it: walk", "state of the model", "call taken apart", "all-gather", "bound")
    columns = {"model": "", "layers": "", "ranks": "", "modules": "", "tensors": "", "first call": ".1f"}
    return Table("ms of a processor before data is exchanged", columns | dict.fromkeys(parts, ".3f"), rows)


def of_checksums(options: Options) -> Table:
    rows: list[list[Cell]] = []
    for millions in options.millions:
        weight = torch.ones(millions * 1_000_000)
        variants = {
            "checksum": lambda weight=weight: _milliseconds(lambda: sums(weight), 1),
            "sum": lambda weight=weight: _milliseconds(weight.sum, 1),
        }
        found = in_turn(variants, options.repeats)
        rows.append([millions, found["checksum"], found["sum"], found["checksum"] / found["sum"]])
    columns = {"million float32": "", "checksum": ".1f", "bound": ".1f", "checksum / bound": ".1f"}
    return Table("ms of a processor for a comparison of parameters, one thread", columns, rows)


def run(options: Options) -> Result:
    return Result([of_calls(options), of_checksums(options)])


BENCHMARK = Benchmark(
    "what each call pays before data is exchanged",
    Options(),
    Options(models=("gpt",), layers=(1,), worlds=(1,), calls=2, repeats=1, millions=(1,)),
    run,
)
