"""What `parallelize` was asked for, checked and in one place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sp.costs import Machine
from sp.course import Place
from sp.errors import SpError, StrategyError
from sp.passes.call import CACHES
from sp.passes.input_dims import SequenceDim
from sp.passes.output_forms import OutputForm
from sp.settings import shown
from sp.strategy import Strategy

BLOCKS = "blocks"  # compile block by block
GLOBAL, LOCAL, CONTIGUOUS = "global", "local", "contiguous"
INPUTS = (GLOBAL, LOCAL, CONTIGUOUS)


@dataclass(frozen=True)
class Options:
    """strategy: on the mesh at hand; None where the cost model chooses.
    machine: what it estimates for; None goes by the model's device.
    place: in a chain of layers, if it is one of them.
    group: for `sp.runtime.world.find_world`, the ranks that share the sequence; "" is a world of one.
    inputs: what the caller passes: whole sequences, this rank's shard, or a contiguous part of the whole.
    compile: whether torch.compile runs the rewritten graph, or its options; BLOCKS for each block by itself.
    generator: what the seeds of dropout are drawn from; None is torch's own.
    sync_gradients: whether gradients of parameters are summed over the ranks in backward.
    averaged: if not, whether it is their average over the ranks that counts, and not their sum; for `no_sync`.
    validate: whether every capture is tried beside the plain model before it runs.
    checkpoint: whether every block computes its activations again in backward, see `sp.passes.checkpoint`.
    memory_budget: the share of its activations that a compiled step may keep, see `sp.passes.partition`."""

    strategy: Strategy | None
    group: str = ""
    sequence_dim: SequenceDim = 1
    inputs: str = GLOBAL
    outputs: OutputForm = "global"
    compile: bool | str | Mapping[str, Any] = True
    kernel: str | None = None
    generator: torch.Generator | None = None
    sync_gradients: bool = True
    averaged: bool = False
    validate: bool = False
    checkpoint: bool = False
    memory_budget: float = 1.0
    machine: Machine | None = None
    place: Place | None = None

    @property
    def local_inputs(self) -> bool:
        """Whether each rank passes a part of its own."""
        return self.inputs != GLOBAL

    @property
    def said(self) -> str:
        """What of it all ranks must have alike, in words.  The strategy stands in the program: a rank may choose it."""
        given = {"inputs": self.inputs, "outputs": self.outputs, "sequence_dim": self.sequence_dim}
        given |= {"compile": self.compile, "kernel": self.kernel, "validate": self.validate}
        given |= {"checkpoint": self.checkpoint, "memory_budget": self.memory_budget}
        return ", ".join(f"{name}={shown(value)}" for name, value in given.items())

    @property
    def chosen(self) -> Strategy:
        """The strategy; SpError where it is still to be chosen."""
        if self.strategy is None:
            raise SpError(
                "strategy='auto' has not been chosen yet: it depends on the first call",
                remedy="call the model once, or pass example_args to parallelize",
            )
        return self.strategy


def check_whole(options: Options, who: str, forms: Collection[str] = (LOCAL,)) -> None:
    """StrategyError where each rank passes a part of its own, or keeps outputs in one of these forms: `who` passes
    whole sequences, which would be taken for parts of a longer one, and reads whole results."""
    given = options.outputs if isinstance(options.outputs, Mapping) else {"": options.outputs}
    outputs = {name: form for name, form in given.items() if name not in CACHES}  # theirs go in again
    part = f"inputs={options.inputs!r}" if options.local_inputs else ""
    if any(form in forms for form in outputs.values()):
        part = part or f"outputs={options.outputs!r}"
    if part:
        raise StrategyError(
            f"{who} passes whole sequences and reads whole results, and the model was parallelized with {part}",
            needed="inputs='global', outputs='global'",
            remedy="parallelize the model once more without it: sp.parallelize(pmodel.plain) shares its parameters",
        )
