"""The choice of a strategy, for `strategy="auto"`: the fastest by the cost model that fits into memory.

It depends on global integers and on options alone, so that every rank chooses the same; the hash of the program, which
ranks compare before they run it, holds what was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sp.costs import Estimate, Estimates, Machine, byte_words, estimate_workload, machine_of
from sp.errors import StrategyError
from sp.options import Options
from sp.passes import rewriting
from sp.passes.manager import run_passes
from sp.passes.output_forms import form_of
from sp.program import Program
from sp.strategy import Strategy
from sp.weigh import weigh


def estimate_program(
    prepared: Program,
    tensors: Sequence[Tensor],
    lengths: Sequence[int],
    options: Options,
    mesh: tuple[int, ...],
    model: nn.Module,
    only: Sequence[Strategy] | None = None,
) -> Estimates:
    """What one call would take under each strategy that a mesh of this shape can run, or under some alone.

    prepared: of plain lines, before any pass reads a strategy.  tensors, lengths: those of the call; global lengths."""
    program = run_passes(prepared, rewriting(options.kernel))
    workload = weigh(
        program, tensors, lengths, type(model).__name__, lambda port: form_of(port, options.outputs) == "global"
    )
    return estimate_workload(workload, mesh, options.machine or _machine(model), only)


def choose(estimates: Estimates) -> Strategy:
    """The best; StrategyError where none fits into memory."""
    best = estimates.best
    if best.fits:
        return best.strategy
    ordered = sorted(estimates.found, key=_memory)
    each = ", ".join(f"{one.strategy.name} {byte_words(one.memory)}" for one in ordered)
    state, machine = byte_words(estimates.workload.state_bytes), estimates.machine
    raise StrategyError(
        f"no strategy fits: {estimates.length:,} tokens on {estimates.world} ranks take, on each rank, {each}",
        needed=f"at most {byte_words(machine.memory)}, the memory of {machine.name}; {state} of it for parameters and "
        "gradients, which count whole even where FSDP cuts them",
        remedy="take more ranks, name a strategy, or pass machine= with the memory that there is",
    )


def _memory(each: Estimate) -> float:
    return each.memory


def _machine(model: nn.Module) -> Machine:
    """By the device of the parameters."""
    device = next((value.device for value in model.parameters()), torch.device("cpu"))
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else ""
    return machine_of(device.type, chip)
