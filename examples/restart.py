"""A training that survives its ranks: torchrun starts all of them again, and they go on from the last whole checkpoint.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1          # see docs/reliability/faults.md
    torchrun --nproc-per-node 2 --max-restarts 3 examples/restart.py --folder runs/restart --kill 1 8

Rank 1 is killed in step 8.  torchrun ends the other ranks and starts all again, and they read what was saved after step
6: parameters, states of the optimizer, random numbers (the model drops out) and the place in the data.  Losses are
those of a run that nobody has disturbed, bit for bit where kernels are deterministic, as on CPUs.

A checkpoint is written into a folder of another name, which gets its own when every rank has written all: a rank that
is killed while it writes leaves the one before.  Another number of ranks goes on from it just so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from bytes_data import VOCABULARY, PythonSources
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

import sp
from sp.models import GPT, GPTConfig


@dataclass
class Run(Stateful):
    """All that a checkpoint holds.  step: how many are done, which is also the place in the data."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0

    def state_dict(self) -> dict[str, Any]:
        random = torch.get_rng_state()  # before anything draws; the same on every rank
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "random": random, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        self.step = state["step"]
        torch.set_rng_state(state["random"])


@dataclass(frozen=True)
class Checkpoints:
    """Folders named by their steps.  What is called `….part` is not whole: someone is at it, or was killed there.

    keep: how many there are at most; the oldest goes when a new one is whole."""

    folder: Path
    keep: int = 2

    def save(self, run: Run) -> None:
        whole = self._path(run.step)
        part = whole.with_suffix(".part")
        dcp.save({"run": run}, checkpoint_id=part)  # returns when every rank has written
        if dist.get_rank() == 0:
            part.rename(whole)
            for step in self.steps()[: -self.keep]:
                shutil.rmtree(self._path(step))
        dist.barrier()

    def resume(self, run: Run) -> None:
        """From the last that is whole, if there is one.  What others have left unfinished is removed."""
        if dist.get_rank() == 0:
            for part in self.folder.glob("step-*.part"):
                shutil.rmtree(part)
        dist.barrier()
        if steps := self.steps():
            dcp.load({"run": run}, checkpoint_id=self._path(steps[-1]))

    def steps(self) -> list[int]:
        whole = [path for path in self.folder.glob("step-*") if path.suffix != ".part"]
        return sorted(int(path.name.removeprefix("step-")) for path in whole)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}"


def train(args: argparse.Namespace, kill: Sequence[int]) -> None:
    """kill: this rank in that step; nobody if empty."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(VOCABULARY, args.length, args.layers, width=args.width, dropout=0.1))
    model = sp.parallelize(model, args.strategy, compile=False)
    run = Run(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    checkpoints, text = Checkpoints(args.folder), PythonSources()
    checkpoints.resume(run)
    while run.step < args.steps:
        with sp.failing_together(during=f"step {run.step + 1}"):
            ids = text.batch(run.step, 1, args.length)
            loss = run.model(ids, labels=ids).loss
            if [dist.get_rank(), run.step + 1] == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            run.optimizer.zero_grad()
            loss.backward()
            run.optimizer.step()
            run.step += 1
            if dist.get_rank() == 0:
                note(args.folder, run.step, loss.item())
            if run.step % args.every == 0:
                checkpoints.save(run)


def note(folder: Path, step: int, loss: float) -> None:
    """A line for each step of each attempt."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(f"attempt {attempt}  step {step:3}  loss {loss:.6f}", flush=True)
    with (folder / "losses.jsonl").open("a") as lines:
        lines.write(json.dumps({"attempt": attempt, "step": step, "loss": loss}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="that all ranks see")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=3, help="steps from checkpoint to checkpoint")
    parser.add_argument("--kill", type=int, nargs=2, metavar=("RANK", "STEP"), default=[], help="in the first attempt")
    parser.add_argument("--timeout", type=float, default=120, help="seconds until a silent rank counts as lost")
    parser.add_argument("--strategy", default="striped")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    train(args, args.kill if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else [])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
