"""What is asked of `parallelize`, word by word → `Options`; StrategyError for what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from sp.costs import Machine, find_machine
from sp.errors import StrategyError
from sp.given import check_kind, check_sequence_dim, check_settings
from sp.options import BLOCKS, INPUTS, Options
from sp.passes.input_dims import SequenceDim
from sp.passes.output_forms import FORMS, OutputForm
from sp.strategy import Strategy, find_strategy

AUTO = "auto"


def options_of(
    strategy: Strategy | None,
    group: str,
    sequence_dim: SequenceDim,
    inputs: str,
    outputs: OutputForm,
    compiled: bool | str | Mapping[str, Any],
    kernel: str | None,
) -> Options:
    """What was asked for, each in a form that can be; StrategyError otherwise."""
    check_sequence_dim(sequence_dim)
    if not isinstance(inputs, str) or inputs not in INPUTS:
        raise StrategyError(f"inputs cannot be {inputs!r}", needed="'global', 'local' or 'contiguous'")
    check_kind("outputs", outputs, (str, Mapping), "'global' or 'local', or one of them by the name of an output")
    forms, known = ([outputs], FORMS[:2]) if isinstance(outputs, str) else (outputs.values(), FORMS)
    wrong = [form for form in forms if not isinstance(form, str) or form not in known]
    if wrong:
        more = "" if isinstance(outputs, str) else ", and 'none' for an output by name"
        raise StrategyError(f"outputs cannot be {wrong[0]!r}", needed=f"'global' or 'local'{more}")
    if not isinstance(compiled, (bool, Mapping)) and compiled != BLOCKS:
        raise StrategyError(
            f"compile cannot be {compiled!r}", needed="True, False, 'blocks' or options of torch.compile"
        )
    check_settings(compiled)
    if (kernel is not None and not isinstance(kernel, str)) or kernel not in (None, "dense", "flash"):
        raise StrategyError(f"there is no kernel {kernel!r}", needed="'dense', 'flash' or None")
    return Options(strategy, group, sequence_dim, inputs, outputs, compiled, kernel)


def strategy_of(strategy: str) -> Strategy | None:
    """None stands for a choice."""
    return None if isinstance(strategy, str) and strategy == AUTO else find_strategy(strategy)


def machine_of(machine: Machine | str | None) -> Machine | None:
    return None if machine is None else find_machine(machine)


def with_more(
    options: Options,
    machine: Machine | str | None,
    memory_budget: float,
    generator: torch.Generator | None,
    switches: Mapping[str, bool],
) -> Options:
    """The options of `parallelize` alone.  switches: those that are True or False."""
    _check_budget(memory_budget, options.compile)
    check_kind("generator", generator, (torch.Generator, type(None)), "a torch.Generator, or None")
    for name, value in switches.items():
        check_kind(name, value, (bool,), "True or False")
    more = replace(options, machine=machine_of(machine), memory_budget=memory_budget, generator=generator)
    return replace(more, **switches)


def _check_budget(budget: float, compiled: bool | str | Mapping[str, Any]) -> None:
    check_kind("memory_budget", budget, (int, float), "a share from 0.0 to 1.0")
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
