"""What the ranks of a world do over and over: train, also under a trace or fed by workers; or write a text on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sp
from tests.decoders import prompt
from tests.faults.bare import LENGTH

Strike = Callable[[], None]
Step = Callable[[Strike], None]


def make_step(does: str, model: nn.Module, folder: Path, backward_begins: Strike) -> Step:
    """does: train, trace, load or generate.  The step calls what it is given at its start, or where `does` says."""
    ids = torch.randint(0, 61, (2, LENGTH), generator=torch.Generator().manual_seed(1))

    def train(strike: Strike, batch: Tensor = ids) -> None:
        strike()
        loss = model(batch, labels=batch).loss
        backward_begins()
        loss.backward()
        model.zero_grad()

    def trace(strike: Strike) -> None:
        with sp.trace(folder / "trace.json"):
            train(strike)

    def load(strike: Strike) -> None:
        """It strikes while a worker is at work."""
        batches = iter(DataLoader([ids] * 12, batch_size=None, num_workers=1))
        train(lambda: None, next(batches))
        strike()
        for batch in batches:
            train(lambda: None, batch)

    def generate(strike: Strike) -> None:
        strike()
        model.generate(input_ids=prompt(9), max_new_tokens=6, do_sample=False)

    return {"train": train, "trace": trace, "load": load, "generate": generate}[does]
