"""Translation validation: the plain model and the transformed program, run side by side and compared.

The transformed program is a translation, so it can be tried on any input without knowing what the model is for.  The
trial is small: few tokens, a world of threads in this process, fp64.  It is the second net behind the proofs: a rule
that is wrong, an op that does what its schema hides, a miscompiled graph come out here as a row of a table.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from sp.errors import InputError, StrategyError, ValidationError
from sp.executable import Executable, build
from sp.fsdp import sharded_modules
from sp.options import GLOBAL, Options
from sp.passes.call import Outputs
from sp.passes.fxtools import is_parameter, result
from sp.program import Program
from sp.request import Lengths, Request
from sp.testing.drawing import draw
from sp.traceable import TURN
from sp.validation.compare import compare
from sp.validation.lengths import trial_lengths
from sp.validation.report import CheckReport, tolerance, worst_rows
from sp.validation.sides import Seen, Side, Trial, Twin, settled, shake, standalone
from sp.validation.transformed import bound_side, is_random, observed, on_ranks


def check_call(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    world: int,
    *,
    lengths: Sequence[int] | None = None,
    dtype: torch.dtype | None = torch.float64,
    length: int | None = None,
) -> CheckReport:
    """Try what `options` make of this call, on `world` ranks that are threads.  Nothing of `model` is changed.

        >>> sp.validation.check_call(nn.Linear(4, 4), (torch.ones(1, 8, 4),), {}, pmodel.options, 2).exact
        True

    world: as many as the mesh has, where the strategy takes one of two axes.
    args, kwargs: an example; tried is its structure, with its dtypes and elements.  lengths, dtype: as in `sp.check`.
    length: the global one where the example is one rank's shard.

    Raises StrategyError under fully_shard, InputError when there is nothing to try, UnsupportedModelError when the
    model is refused, ValidationError when the transformed program fails or returns other constants."""
    _check_plain(model)
    with TURN, _defaults():  # nobody traces while this runs: models do ask whether they are being traced
        alone = _alone(options)
        plain = standalone(model, dtype)
        given = _Given.of(plain, args, kwargs, options, dtype)
        whole_lengths = given.request.lengths if length is None else (length,)
        call = given.untouched(plain, whole_lengths, alone)
        alone, executable = _built(plain, call, whole_lengths, alone)
        tried = trial_lengths(executable.program.sequences, world, lengths)
        trials = [given.trial(sizes, tuple(executable.outputs.names)) for sizes in tried]
        precision = _precision(executable.captured)
        single = replace(alone, strategy=options.chosen.on((1,) * len(options.chosen.shape)))

        def one_rank() -> Program:
            return build(plain, call, whole_lengths, single).program

        reference = _reference(executable, plain, given, trials, torch.finfo(precision).eps, one_rank)
        found = on_ranks(executable.program, plain, trials, world, options.chosen.shape)
    rows = [
        row
        for rank, seen in enumerate(found)
        for trial, mine, whole, shaken in zip(trials, seen, reference.seen, reference.shaken, strict=True)
        for row in compare(mine, whole, shaken, precision, f"{trial.tokens}, rank {rank}")
    ]
    name, text = type(model).__name__, str(precision).removeprefix("torch.")
    bound, strategy = tolerance(precision), options.chosen.name
    first = tuple(sizes[0] for sizes in tried)
    return CheckReport(name, strategy, world, first, reference.name, text, bound, worst_rows(rows))


def _check_plain(model: nn.Module) -> None:
    if sharded := sharded_modules(model):
        where = repr(sharded[0]) if sharded[0] else "the model"
        raise StrategyError(
            f"fully_shard was called on {where}: no copy of it runs on one rank",
            needed="a plain model, to compare with",
            remedy="sp.check before fully_shard; parallelize without validate=True",
        )


def _alone(options: Options) -> Options:
    """In a world of one, whole inputs, outputs and gradients."""
    whole = replace(options, group="", inputs=GLOBAL, outputs="global", sync_gradients=True)
    return replace(whole, compile=False, validate=False)


def _built(plain: nn.Module, call: Request, lengths: Lengths, alone: Options) -> tuple[Options, Executable]:
    """With caches gathered, too: unasked, they stay on their ranks."""
    executable = build(plain, call, lengths, alone)
    if caches := {name: GLOBAL for name in executable.outputs.kept if name}:
        alone = replace(alone, outputs=caches)
        executable = build(plain, call, lengths, alone)
    return alone, executable


@contextmanager
def _defaults() -> Generator[None]:
    """Gradients on and autocast off, whatever the caller's context: fp64 is nothing that autocast touches."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng(devices=[]),
    ):
        yield


@dataclass(frozen=True)
class _Given:
    """The caller's example, in the precision of the check."""

    request: Request

    @staticmethod
    def of(
        model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options, dtype: torch.dtype | None
    ) -> _Given:
        request = Request.of(model, args, kwargs, options.sequence_dim)
        tensors = (settled(given, dtype).requires_grad_(given.requires_grad) for given in request.tensors)
        return _Given(replace(request, tensors=tuple(tensors)))

    def untouched(self, model: nn.Module, lengths: Lengths, options: Options) -> Request:
        """The call with memory that nobody writes to: capture reads shapes and dtypes only."""
        tensors: list[Tensor] = []
        for given, resized in self._resized(lengths):
            sizes = [resized.get(dim, size) for dim, size in enumerate(given.shape)]
            tensors.append(torch.empty(sizes, dtype=given.dtype, requires_grad=given.requires_grad))
        args, kwargs = self.request.call.rebuild(tensors)
        return Request.of(model, args, kwargs, options.sequence_dim)

    def trial(self, lengths: Lengths, outputs: tuple[str, ...]) -> Trial:
        """The call at other lengths, the same on every rank of every process."""
        seed = zlib.crc32(f"{self.request.call.names} {lengths}".encode())
        generator = torch.Generator().manual_seed(seed)
        drawn = [
            draw(given.detach(), resized, generator).requires_grad_(given.requires_grad)
            for given, resized in self._resized(lengths)
        ]
        return Trial(lengths, seed, self.request.call.names, tuple(drawn), outputs)

    def _resized(self, lengths: Lengths) -> Iterator[tuple[Tensor, dict[int, int]]]:
        """Each tensor of the example, and how long the dims shall be in which its sequences are."""
        known = self.request.lengths
        for given, dims in zip(self.request.tensors, self.request.dims, strict=True):
            yield given, {dim: lengths[known.index(given.shape[dim])] for dim in dims}


@dataclass(frozen=True)
class _Reference:
    """What is right, and what it becomes when parameters and inputs move in their last digit."""

    name: str
    seen: Sequence[Seen]
    shaken: Sequence[Seen]


def _reference(
    executable: Executable,
    plain: nn.Module,
    given: _Given,
    trials: Sequence[Trial],
    eps: float,
    single: Callable[[], Program],
) -> _Reference:
    """The plain model, or, where it drops out, the transformed program in a world of one, which `single` makes.

    Such noise is a function of seed and place in the program, and of a generator's state in the plain model."""
    if is_random(executable.program):
        name = "the transformed program in a world of one: it draws random numbers"
        program = single()
        return _both(name, lambda: bound_side(program, plain, ""), trials, eps)
    try:
        return _both("the plain model", lambda: _plain_side(executable, plain, given), trials, eps)
    except ValidationError:
        raise
    except Exception as error:  # the model's own code, which may raise anything
        raise InputError(
            f"{type(plain).__name__} itself fails on inputs drawn from the example: {type(error).__name__}: {error}",
            needed="a model that takes every tensor of this structure with elements of the example's",
        ) from error


def _both(name: str, make: Callable[[], Side], trials: Sequence[Trial], eps: float) -> _Reference:
    seen, other = observed(make(), trials), make()
    return _Reference(name, seen, observed(other, shake(other, trials, eps)))


def _plain_side(executable: Executable, plain: nn.Module, given: _Given) -> Side:
    twin = Twin.of(plain, plain)

    def call(*tensors: Tensor) -> Sequence[Tensor]:
        args, kwargs = given.request.call.rebuild(tensors)
        outputs = Outputs()
        found = outputs.flatten(twin.module(*args, **kwargs))
        _check_form(executable.outputs, outputs, type(plain).__name__)
        return found

    return Side(call, twin.parameters, twin.buffers)


def _check_form(made: Outputs, right: Outputs, name: str) -> None:
    """What is no tensor is not compared in rows: constants, and containers of other tensors."""
    mine, whole = (
        f"{each.names} and {[one[0] for one in each.constants if one]} in {each.spec}" for each in (made, right)
    )
    if mine != whole:
        raise ValidationError(
            f"the transformed {name} returns {mine}",
            needed=f"what the model returns: {whole}",
            remedy="a model that asks whether it is being traced is another one then: let it not",
        )


def _precision(program: Program) -> torch.dtype:
    """The coarsest floating dtype in which something is computed that depends on parameters or floating inputs."""
    reached: set[fx.Node] = set()
    dtypes: list[torch.dtype] = []
    for node in program.graph.nodes:
        value = result(node)
        if value is None or not (value.is_floating_point() or value.is_complex()):
            continue
        source = node.op == "placeholder" or is_parameter(node)
        if source or any(operand in reached for operand in node.all_input_nodes):
            reached.add(node)
            dtypes.append(value.dtype.to_real())
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)
