"""What people ask for, as options: names are looked up, and what cannot be is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from sp.costs import Machine, find_machine
from sp.errors import StrategyError
from sp.module import ParallelModule
from sp.options import BLOCKS, INPUTS, Options
from sp.passes.input_dims import SequenceDim
from sp.passes.output_forms import FORMS, OutputForm
from sp.strategy import Strategy, find_strategy

AUTO = "auto"


def checked_plain(model: nn.Module) -> nn.Module:
    """The model itself, if nobody has parallelized it."""
    if isinstance(model, ParallelModule):
        raise StrategyError("the model is parallelized already", remedy="pass the plain model, `pmodel.plain`")
    return model


def options_of(
    strategy: Strategy | None,
    group: str,
    sequence_dim: SequenceDim,
    inputs: str,
    outputs: OutputForm,
    compiled: bool | str | Mapping[str, Any] = False,
    kernel: str | None = None,
    machine: Machine | str | None = None,
    memory_budget: float = 1.0,
) -> Options:
    """StrategyError for what does not exist.  strategy: None is to be chosen, on that machine.  group: its name."""
    if inputs not in INPUTS:
        raise StrategyError(f"inputs cannot be {inputs!r}", needed="'global', 'local' or 'contiguous'")
    forms = [outputs] if isinstance(outputs, str) else outputs.values()
    wrong = [form for form in forms if form not in FORMS[: 2 if isinstance(outputs, str) else None]]
    if wrong:
        more = "" if isinstance(outputs, str) else ", and 'none' for an output by name"
        raise StrategyError(f"outputs cannot be {wrong[0]!r}", needed=f"'global' or 'local'{more}")
    if isinstance(compiled, str) and compiled != BLOCKS:
        raise StrategyError(
            f"compile cannot be {compiled!r}", needed="True, False, 'blocks' or options of torch.compile"
        )
    if kernel not in (None, "dense", "flash"):
        raise StrategyError(f"there is no kernel {kernel!r}", needed="'dense', 'flash' or None")
    _check_budget(memory_budget, compiled)
    found = None if machine is None else find_machine(machine)
    options = Options(strategy, group, sequence_dim, inputs, outputs, compiled, kernel)
    return replace(options, machine=found, memory_budget=memory_budget)


def find_or_choose(strategy: str) -> Strategy | None:
    """None stands for a choice."""
    return None if strategy == AUTO else find_strategy(strategy)


def _check_budget(budget: float, compiled: bool | str | Mapping[str, Any]) -> None:
    if not 0 <= budget <= 1:
        raise StrategyError(f"memory_budget is {budget}", needed="a share from 0.0 to 1.0")
    settings = compiled if isinstance(compiled, Mapping) else {}
    wrong = [word for word in ("mode", "backend") if settings.get(word) not in (None, "inductor", "default")]
    if budget < 1 and (not compiled or wrong):
        raise StrategyError(
            f"memory_budget is {budget} with {'compile=False' if not compiled else f'a {wrong[0]} of your own'}",
            needed="Inductor, which decides what is recomputed",
            remedy="compile=True, or a mapping with options alone",
        )
