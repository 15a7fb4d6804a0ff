"""The interface: `parallelize`, `inspect` and `check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal, cast

import torch
from torch import nn

from sp import costs
from sp.asked import AUTO, machine_of, options_of, strategy_of, with_more
from sp.costs import Estimates, Machine, ModelShape, Sharding
from sp.errors import InputError, StrategyError
from sp.executable import build, estimate_call
from sp.given import check_call, check_kind, check_model
from sp.mesh import Mesh, bind_mesh
from sp.module import ParallelModule
from sp.passes.input_dims import SequenceDim
from sp.passes.output_forms import OutputForm
from sp.request import Request
from sp.show import Report
from sp.strategy import bind_names, bind_size, find_strategy
from sp.validation import CheckReport
from sp.validation import check_call as try_call

Form = Literal["global", "local", "contiguous"]


def parallelize(  # noqa: PLR0913 - what can be asked for, in one place
    model: nn.Module,
    strategy: str = "striped",
    *,
    mesh: Mesh = None,
    example_args: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    sequence_dim: SequenceDim = 1,
    inputs: Form = "global",
    outputs: OutputForm = "global",
    sync_gradients: bool = True,
    compile: bool | Literal["blocks"] | Mapping[str, Any] = True,  # noqa: A002 - torch's own word for it
    kernel: str | None = None,
    generator: torch.Generator | None = None,
    validate: bool = False,
    machine: Machine | str | None = None,
    memory_budget: float = 1.0,
    checkpoint: bool = False,
) -> ParallelModule:
    """The same model with its sequence spread over the ranks of `mesh`: same call, loss, logits and gradients.

        >>> sp.parallelize(model, "striped", compile=False)(ids, labels=ids).loss.backward()

    model: any nn.Module that torch.export can trace.  Its parameters are shared with the result, not copied.
    strategy: a name in `sp.STRATEGIES`, or "auto": the first capture takes the fastest that fits into memory, as
        `sp.estimate` sees it on `machine` (a name in `sp.costs.MACHINES`, one of your own, None goes by the device).
    mesh: a one-dimensional DeviceMesh or a ProcessGroup; None takes the default group, or a world of one.  Strategies
        of two axes take a two-dimensional DeviceMesh, whose second axis are neighbours, or `sp.MeshGroups`.
    example_args, example_kwargs: given, the model is captured now instead of at its first call.
    sequence_dim: the dim of every input that holds the sequence, or one for each input by name; two for a mask of
        queries and keys.  An input [batch, heads, S, S] beside others of length S is taken for such a mask.
    inputs: "local" when the caller passes its shard of every input (see `pmodel.layout`), "contiguous" when its part.
    outputs: "local" leaves sharded outputs on their ranks; a mapping chooses by output name, and "none" there makes
        None of an output that nobody reads (logits beside a loss), without gathering or computing it.
    sync_gradients: False leaves to each rank its part of every parameter's gradient, for others to sum (FSDP, DDP).
    compile: False runs the graph as it is; "blocks" compiles blocks, equal ones once; a mapping goes to torch.compile.
    kernel: "dense" or "flash"; None chooses by device and dtype, and the report shows which.
    generator: draws one seed for each call that drops out, on the CPU; None is torch's own.  Rank 0's seed counts.
    validate: True tries every capture as `sp.check` does before it first runs; ValidationError if it is not exact.
    memory_budget: the share of activations that a compiled step may keep.  checkpoint: True keeps only the inputs of
        blocks, compiled or not.  The rest is recomputed, but for what communicates; docs/memory.md says how.

    Raises StrategyError for an unknown strategy, mesh or option.  A call raises InputError, RankMismatchError or
    UnsupportedModelError, on every rank and before data is exchanged, and RankLostError where a rank is lost in it."""
    check_model(model)
    options = options_of(*bind_mesh(strategy_of(strategy), mesh), sequence_dim, inputs, outputs, compile, kernel)
    check_call(example_args, example_kwargs, ("example_args", "example_kwargs"))
    switches = {"sync_gradients": sync_gradients, "validate": validate, "checkpoint": checkpoint}
    options = with_more(options, machine, memory_budget, generator, switches)
    return _captured_by(ParallelModule(model, options), example_args, example_kwargs)


def inspect(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    strategy: str = "striped",
    world_size: int | tuple[int, int] = 8,
    sequence_dim: SequenceDim = 1,
    outputs: OutputForm = "global",
    kernel: str | None = None,
    machine: Machine | str | None = None,
) -> Report:
    """The report of what `parallelize` would do to this call on `world_size` ranks, without any process group.

        >>> print(sp.inspect(model, (ids,), {"labels": ids}, strategy="zigzag", world_size=4))
        strategy      zigzag = zigzag layout + ring transport
        world         4 ranks
        sequence      24 tokens, 6 on each rank
        …

    world_size: (outer, inner) for strategies of two axes."""
    check_model(model)
    check_call(args, kwargs)
    bound, shape = bind_size(strategy_of(strategy), world_size)
    options = options_of(bound, "", sequence_dim, "global", outputs, False, kernel)
    options = replace(options, machine=machine_of(machine))
    request = Request.of(model, args, kwargs or {}, sequence_dim)
    executable = build(model, request, request.lengths, options, shape)
    return Report(executable.program, prod(shape), request.lengths, executable.captured, executable.estimates)


def estimate(
    model: ModelShape | nn.Module,
    length: int,
    world: int | tuple[int, int],
    machine: Machine | str,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    sequence_dim: SequenceDim = 1,
    outputs: OutputForm = "global",
    causal: bool = True,
    recompute: bool = False,
    sharding: Sharding | None = None,
    strategies: Sequence[str] | None = None,
) -> Estimates:
    """What one training step over `length` tokens would take on `world` ranks, for each strategy.

        >>> print(sp.estimate(llama, 1_048_576, 64, "h100"))  # a table, with reasons; llama: an sp.costs.ModelShape
        1,048,576 tokens on 64 ranks of h100; …
        >>> any_model = sp.estimate(model, 240, 8, "h100", args=(ids,), kwargs={"labels": ids})  # meta ones too
        >>> strategy = any_model.best.strategy.name  # for sp.parallelize

    model: the sizes of a decoder, for one sequence, causal or not; or a model, which is captured as `parallelize` would
        capture the call of args and kwargs, and weighed with its own masks, for a batch as the call has it.
    world: how many ranks, or (outer, inner) for strategies of two axes.
    length: of the first sequence of the call, whatever its length in args; others are as long as there.
    machine: a name in `sp.costs.MACHINES`, or one of your own.
    recompute: of sizes only: activations of a block, but those of attention, are computed again in backward.
    sharding: of sizes only: FSDP divides parameters, gradients and optimizer over ranks, see `sp.costs.Sharding`.
    strategies: names; None takes all that such a mesh can run.

    Nothing is run and no process group is needed; a world of 4,096 takes no longer than one of 2.  The length is
    rounded up until each rank has the same even number of tokens.  docs/costs.md says what the model leaves out.

    Raises StrategyError for an unknown strategy or machine or a world without ranks, InputError for fewer tokens than
    ranks and for arguments that do not fit, UnsupportedModelError for a model that cannot be captured."""
    if isinstance(model, ModelShape):
        return costs.estimate(
            model, length, world, machine, causal=causal, recompute=recompute, sharding=sharding, strategies=strategies
        )
    _check_whole(model, length, (args, kwargs), causal or None, recompute or sharding)
    options = replace(options_of(None, "", sequence_dim, "global", outputs, False, None), machine=machine_of(machine))
    request = Request.of(model, args, kwargs or {}, sequence_dim)
    _, shape = bind_size(None, world)
    known = None if strategies is None else bind_names(strategies, world)
    return estimate_call(model, request, (length, *request.lengths[1:]), options, shape, known)


def check(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    world_size: int | tuple[int, int] = 4,
    strategy: str = "striped",
    sequence_dim: SequenceDim = 1,
    lengths: Sequence[int] | None = None,
    dtype: torch.dtype | None = torch.float64,
    kernel: str | None = None,
) -> CheckReport:
    """Run the plain model and the transformed program side by side on small inputs, and compare all that they make.

        >>> sp.check(nn.Linear(4, 4), (torch.ones(1, 8, 4),), world_size=2).exact
        True

    In a world of `world_size` threads of this process: no launcher and no process group.  Compared are all outputs,
    the gradients of all parameters and of the inputs that require them (of the output named `loss`, and of all
    floating outputs, each element weighted at random), and what the call changes in buffers and inputs.

    world_size: (outer, inner) for strategies of two axes.
    args, kwargs: an example; tried are inputs of its structure and of its elements, of other lengths.
    lengths: along the sequence; None takes one that divides over the ranks and one that does not.  Windows and chunks
        of a model are tried only at lengths beyond them.
    dtype: what a copy of the model computes in; None keeps the model's own dtype, and widens the tolerance to it.

    Raises UnsupportedModelError where the model is refused, InputError where there is nothing to try, and
    ValidationError where the transformed program fails.  Errors of a program that runs are in the report."""
    check_model(model)
    check_call(args, kwargs)
    check_kind("dtype", dtype, (torch.dtype, type(None)), "a dtype of floating point, or None", InputError)
    if dtype is not None and not dtype.is_floating_point:
        raise InputError(f"the dtype of a check cannot be {dtype}", needed="one of floating point")
    _check_lengths(lengths)
    if strategy == AUTO:
        raise StrategyError("there is nothing to check of 'auto': it depends on length and machine", needed="a name")
    bound, shape = bind_size(find_strategy(strategy), world_size)
    options = options_of(bound, "", sequence_dim, "global", "global", False, kernel)
    return try_call(model, args, kwargs or {}, options, prod(shape), lengths=lengths, dtype=dtype)


def _captured_by(
    parallel: ParallelModule, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> ParallelModule:
    """The module itself; captured now where there is an example of a call."""
    if args is not None or kwargs is not None:
        parallel.capture(args or (), kwargs or {})
    return parallel


def _check_whole(model: nn.Module, length: int, call: tuple[object, object], causal: object, others: object) -> None:
    if others or not causal:
        found = "causal, recompute and sharding are for a ModelShape"
        raise InputError(found, needed="a model's own masks, and all it keeps")
    check_model(model)
    check_call(*call)
    check_kind("length", length, (int,), "a number of tokens", InputError)


def _check_lengths(lengths: object) -> None:
    needed = "numbers of tokens, as [64, 65]"
    check_kind("lengths", lengths, (Sequence, type(None)), needed, InputError)
    for length in cast("Sequence[object]", lengths or ()):
        check_kind("a length", length, (int,), needed, InputError)
