"""Train an ordinary byte-level language model with its sequence spread over processes, and hold it against one process.

    python examples/train_bytes.py --world 2
    torchrun --nproc-per-node 2 examples/train_bytes.py

The same training (same seed, same batches) runs on a single device and then under each strategy.  Prints a table,
writes loss_curves.png, and ends with exit code 1 when a strategy strays further than rounding explains.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import sysconfig
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from arguments import ONE_AXIS
from bytes_data import VOCABULARY, PythonSources
from bytes_report import Run, draw, table, verdicts
from torch import nn
from tqdm import tqdm

import sp
from sp.models import GPT, GPTConfig, Llama, LlamaConfig
from sp.testing import ProcessWorld
from sp.testing.memory import most_alive_bytes


def make_model(args: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"layers": args.layers, "heads": args.heads, "width": args.width}
    if args.model == "gpt":
        return GPT(GPTConfig(VOCABULARY, **shape, max_length=args.length))
    return Llama(LlamaConfig(VOCABULARY, **shape, kv_heads=max(1, args.heads // 2)))


def train(model: nn.Module, text: PythonSources, name: str, args: argparse.Namespace) -> Run:
    """A training loop as anybody writes it.  It does not know whether the model is spread over ranks."""
    run = Run(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    bar = tqdm(range(args.steps), desc=f"{name:<14}", disable=dist.get_rank() != 0)
    if args.compile:
        bar.set_postfix_str("compiling in the first step")
    for step in bar:
        start = time.perf_counter()
        ids = text.batch(step, args.batch, args.length)
        loss = model(ids, labels=ids).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.losses.append(loss.item())
        run.norms.append(norm.item())
        run.seconds.append(time.perf_counter() - start)
        bar.set_postfix_str(f"loss {loss:.4f}, {ids.numel() / run.step_s:,.0f} tokens/s")
    run.memory = step_memory(model, text.batch(0, args.batch, args.length))
    return run


def train_single(text: PythonSources, args: argparse.Namespace) -> Run:
    """The reference, in this process alone, with as many threads as the ranks have together."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads * dist.get_world_size())
    model = make_model(args)
    if args.compile:
        model.compile()
    run = train(model, text, "single device", args)
    torch.set_num_threads(threads)
    return run


def train_parallel(text: PythonSources, strategy: str, args: argparse.Namespace) -> Run:
    model = make_model(args)
    model = sp.parallelize(model, strategy=strategy, compile=args.compile)
    run = train(model, text, strategy, args)
    memory = torch.tensor(run.memory)
    dist.all_reduce(memory, dist.ReduceOp.MAX)
    run.memory = int(memory)
    return run


def train_all(args: argparse.Namespace) -> list[Run]:
    """Every run, the single device first, which only rank 0 trains.  All ranks call this; rank 0 has the answer."""
    text = PythonSources()
    runs = [train_single(text, args)] if dist.get_rank() == 0 else []
    dist.barrier()
    return runs + [train_parallel(text, strategy, args) for strategy in args.strategies]


def step_memory(model: nn.Module, ids: torch.Tensor) -> int:
    """The most bytes of tensors alive at once in one forward and backward: activations, gradients and logits.

    Counted by torch's profiler.  The process's own peak (ru_maxrss) would be the compiler's, or an earlier run's."""
    os.environ["KINETO_LOG_LEVEL"] = "99"  # or it says on stderr that it starts and stops

    def step() -> None:
        model(ids, labels=ids).loss.backward()

    return most_alive_bytes(step)


def missing_for_compile() -> str:
    """What torch.compile needs on a CPU and this machine lacks; empty when it lacks nothing."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not shutil.which(compiler):
        return f"a C++ compiler ({compiler})"
    return "" if header.exists() else f"Python's headers ({header})"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=2, help="ranks; under torchrun its --nproc-per-node counts")
    parser.add_argument("--strategies", default="striped,ring,zigzag", help="some of " + ",".join(ONE_AXIS))
    parser.add_argument("--model", choices=["llama", "gpt"], default="llama")
    parser.add_argument("--length", type=int, default=4096, help="tokens of the whole sequence")
    parser.add_argument("--batch", type=int, default=1, help="sequences a step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: where a C++ compiler is")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds after which a hanging world is ended")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where loss_curves.png goes")
    args = parser.parse_args()
    args.strategies = args.strategies.split(",")
    if unknown := [name for name in args.strategies if name not in ONE_AXIS]:
        parser.error(f"unknown strategy {unknown[0]!r}, known are {', '.join(ONE_AXIS)}")
    if wrong := [name for name in ("world", "batch", "steps") if getattr(args, name) < 1]:
        parser.error(f"--{wrong[0]} must be at least 1")
    missing = missing_for_compile()
    if missing and args.compile:
        parser.error(f"--compile needs {missing}")
    if args.compile is None:
        args.compile = not missing
    args.missing = missing
    return args


def report(runs: list[Run], world: int, args: argparse.Namespace) -> int:
    """Print and draw the comparison; the exit code."""
    single, *others = runs
    args.out.mkdir(parents=True, exist_ok=True)
    draw(single, others, world, args.out / "loss_curves.png")
    print(f"\n{table(single, others, args.batch * args.length)}\n\ncurves: {args.out / 'loss_curves.png'}")
    lines, all_same = verdicts(single, others, world)
    print("\n".join(lines))
    return 0 if all_same else 1


def run_all(ranks: ProcessWorld, args: argparse.Namespace) -> list[Run]:
    try:
        return ranks.run(train_all, args, timeout_s=args.timeout)[0]
    except TimeoutError as error:
        sys.exit(f"{error}\nNot done in {args.timeout:,.0f} seconds; a busy machine may need a larger --timeout.")


def main() -> int:
    args = parse_arguments()
    torchrun = "RANK" in os.environ
    world = int(os.environ["WORLD_SIZE"]) if torchrun else args.world
    if int(os.environ.get("RANK", "0")) == 0:
        why_not = f"this machine lacks {args.missing}" if args.missing else "--no-compile"
        how = "compiled" if args.compile else f"not compiled: {why_not}"
        print(f"{args.model}, {args.layers} layers of width {args.width}, {args.length} tokens on {world} ranks, {how}")
    if not torchrun:
        with ProcessWorld(world, threads_per_rank=max(1, (os.cpu_count() or 1) // world)) as ranks:
            return report(run_all(ranks, args), world, args)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    runs = train_all(args)
    first = dist.get_rank() == 0
    dist.destroy_process_group()
    return report(runs, world, args) if first else 0


if __name__ == "__main__":
    sys.exit(main())
