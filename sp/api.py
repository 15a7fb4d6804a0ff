"""The interface: `parallelize` and `inspect`."""

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
from sp.passes.capture import SequenceDim
from sp.passes.localize import OutputForm
from sp.request import Request
from sp.show import Report
from sp.strategy import find_strategy

Form = Literal["global", "local"]


def parallelize(
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
) -> ParallelModule:
    """The same model with its sequence spread over the ranks of `mesh`: same call, loss, logits and gradients.

    model: any nn.Module that torch.export can trace.  Its parameters are shared with the result, not copied.
    strategy: a name in `sp.STRATEGIES`.
    mesh: a one-dimensional DeviceMesh or a ProcessGroup; None takes the default group, or a world of one.
    example_args, example_kwargs: given, the model is captured now instead of at its first call.
    sequence_dim: the dim of every input that holds the sequence, or one for each input by name.
    inputs: "local" when the caller passes this rank's shard (see `pmodel.layout`), always for every input.
    outputs: "local" leaves sharded outputs on their ranks; a mapping chooses by output name.
    compile: False runs the graph as it is; a mapping is passed on to torch.compile.
    kernel: "dense" or "flash"; None chooses by device and dtype, and the report shows which.
    generator: draws one seed for each call that drops out, on the CPU; None is torch's own.  Rank 0's seed counts.

    Raises StrategyError for an unknown strategy, mesh or option.  Calling the result raises InputError,
    RankMismatchError or UnsupportedModelError, on every rank and before any data is exchanged."""
    options = _options(strategy, _group_name(mesh), sequence_dim, inputs, outputs, compile, kernel)
    options = replace(options, generator=generator)
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
    forms = [inputs, *([outputs] if isinstance(outputs, str) else outputs.values())]
    wrong = [form for form in forms if form not in ("global", "local")]
    if wrong:
        raise StrategyError(f"inputs and outputs cannot be {wrong[0]!r}", needed="'global' or 'local'")
    if kernel not in (None, "dense", "flash"):
        raise StrategyError(f"there is no kernel {kernel!r}", needed="'dense', 'flash' or None")
    return Options(find_strategy(strategy), group, sequence_dim, inputs == "local", outputs, compiled, kernel)


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
