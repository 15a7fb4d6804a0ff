"""The interface: `parallelize`, `inspect` and `check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from sp.errors import StrategyError
from sp.executable import build
from sp.module import ParallelModule
from sp.options import Options
from sp.passes.input_dims import SequenceDim
from sp.passes.output_forms import FORMS, OutputForm
from sp.request import Request
from sp.show import Report
from sp.strategy import find_strategy
from sp.validation import CheckReport, check_call

Form = Literal["global", "local"]


def parallelize(  # noqa: PLR0913 - what can be asked for, in one place
    model: nn.Module,
    strategy: str = "striped",
    *,
    mesh: DeviceMesh | dist.ProcessGroup | None = None,
    example_args: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    sequence_dim: SequenceDim = 1,
    inputs: Form = "global",
    outputs: OutputForm = "global",
    compile: bool | Mapping[str, Any] = True,  # noqa: A002 - torch's own word for it
    kernel: str | None = None,
    generator: torch.Generator | None = None,
    validate: bool = False,
    memory_budget: float = 1.0,
) -> ParallelModule:
    """The same model with its sequence spread over the ranks of `mesh`: same call, loss, logits and gradients.

    model: any nn.Module that torch.export can trace.  Its parameters are shared with the result, not copied.
    strategy: a name in `sp.STRATEGIES`.
    mesh: a one-dimensional DeviceMesh or a ProcessGroup; None takes the default group, or a world of one.
    example_args, example_kwargs: given, the model is captured now instead of at its first call.
    sequence_dim: the dim of every input that holds the sequence, or one for each input by name; two for a mask of
        queries and keys.  An input [batch, heads, S, S] beside others of length S is taken for such a mask.
    inputs: "local" when the caller passes this rank's shard (see `pmodel.layout`), always for every input.
    outputs: "local" leaves sharded outputs on their ranks; a mapping chooses by output name, and "none" there makes
        None of an output that nobody reads (logits beside a loss), without gathering or computing it.
    compile: False runs the graph as it is; a mapping is passed on to torch.compile.
    kernel: "dense" or "flash"; None chooses by device and dtype, and the report shows which.
    generator: draws one seed for each call that drops out, on the CPU; None is torch's own.  Rank 0's seed counts.
    validate: True tries every capture as `sp.check` does, on each rank by itself, before it first runs: a second
        capture and some seconds, for a copy of the model on the CPU; ValidationError, on all ranks, if it is not exact.
    memory_budget: how much of the activations a compiled step may keep for backward, from 1.0, all that saves time, to
        0.0, as little as it can.  The rest is recomputed; an attention, and whatever else communicates, never is.

    Raises StrategyError for an unknown strategy, mesh or option.  Calling the result raises InputError,
    RankMismatchError or UnsupportedModelError, on every rank and before any data is exchanged."""
    options = _options(strategy, _group_name(mesh), sequence_dim, inputs, outputs, compile, kernel)
    _check_budget(memory_budget, compile)
    options = replace(options, generator=generator, validate=validate, memory_budget=memory_budget)
    _check_plain(model)
    parallel = ParallelModule(model, options)
    if example_args is not None or example_kwargs is not None:
        parallel.capture(example_args or (), example_kwargs or {})
    return parallel


def inspect(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    strategy: str = "striped",
    world_size: int = 8,
    sequence_dim: SequenceDim = 1,
    outputs: OutputForm = "global",
    kernel: str | None = None,
) -> Report:
    """The report of what `parallelize` would do to this call on `world_size` ranks, without any process group."""
    _check_plain(model)
    options = _options(strategy, "", sequence_dim, "global", outputs, False, kernel)
    request = Request.of(model, args, kwargs or {}, sequence_dim)
    executable = build(model, request, request.lengths, options)
    return Report(executable.program, world_size, request.lengths, executable.captured)


def check(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    world_size: int = 4,
    strategy: str = "striped",
    sequence_dim: SequenceDim = 1,
    lengths: Sequence[int] | None = None,
    dtype: torch.dtype | None = torch.float64,
    kernel: str | None = None,
) -> CheckReport:
    """Run the plain model and the transformed program side by side on small inputs, and compare all that they make.

    In a world of `world_size` threads of this process: no launcher and no process group.  Compared are all outputs,
    the gradients of all parameters and of the inputs that require them (of the output named `loss`, and of all
    floating outputs, each element weighted at random), and what the call changes in buffers and inputs.

    args, kwargs: an example; tried are inputs of its structure and of its elements, of other lengths.
    lengths: along the sequence; None takes one that divides over the ranks and one that does not.  Windows and chunks
        of a model are tried only at lengths beyond them.
    dtype: what a copy of the model computes in; None keeps the model's own dtype, and widens the tolerance to it.

    Raises UnsupportedModelError where the model is refused, InputError where there is nothing to try, and
    ValidationError where the transformed program fails.  Errors of a program that runs are in the report."""
    _check_plain(model)
    if world_size < 1:
        raise StrategyError(f"a world of {world_size} ranks", needed="at least one rank")
    options = _options(strategy, "", sequence_dim, "global", "global", False, kernel)
    return check_call(model, args, kwargs or {}, options, world_size, lengths=lengths, dtype=dtype)


def _check_plain(model: nn.Module) -> None:
    if isinstance(model, ParallelModule):
        raise StrategyError("the model is parallelized already", remedy="pass the plain model, `pmodel.model`")


def _options(
    strategy: str,
    group: str,
    sequence_dim: SequenceDim,
    inputs: str,
    outputs: OutputForm,
    compiled: bool | Mapping[str, Any],
    kernel: str | None,
) -> Options:
    whole = [inputs, *([outputs] if isinstance(outputs, str) else ())]
    named = () if isinstance(outputs, str) else outputs.values()
    wrong = [form for form in whole if form not in ("global", "local")]
    wrong += [form for form in named if form not in FORMS]
    if wrong:
        more = ", and 'none' for an output by name" if named else ""
        raise StrategyError(f"inputs and outputs cannot be {wrong[0]!r}", needed=f"'global' or 'local'{more}")
    if kernel not in (None, "dense", "flash"):
        raise StrategyError(f"there is no kernel {kernel!r}", needed="'dense', 'flash' or None")
    return Options(find_strategy(strategy), group, sequence_dim, inputs == "local", outputs, compiled, kernel)


def _check_budget(budget: float, compiled: bool | Mapping[str, Any]) -> None:
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


def _group_name(mesh: object) -> str:
    if mesh is None:
        return dist.group.WORLD.group_name if dist.is_initialized() and dist.group.WORLD is not None else ""
    if isinstance(mesh, DeviceMesh):
        if mesh.ndim != 1:
            raise StrategyError(
                f"the mesh has {mesh.ndim} axes: {mesh.mesh_dim_names or tuple(mesh.shape)}",
                needed="one axis, the one along which the sequence is spread",
                remedy="pass one axis of it, as in mesh['sp']",
            )
        return mesh.get_group().group_name
    if isinstance(mesh, dist.ProcessGroup):
        return mesh.group_name
    raise StrategyError(f"mesh is a {type(mesh).__name__}", needed="a DeviceMesh, a ProcessGroup or None")
