"""ParallelModule: what the user holds after `parallelize`.  It captures, agrees with the others, and runs."""

from __future__ import annotations

import copy
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx, nn

from sp.captures import note_capture
from sp.errors import SpError, ValidationError
from sp.executable import Executable, build
from sp.facade import Facade, outside_of_graphs
from sp.fitting import check_length, dealt, global_length
from sp.generation import generate
from sp.gradients import gradients_word, summed_at_the_end, watch_sums
from sp.layout import find_layout
from sp.options import CONTIGUOUS, Options
from sp.request import Lengths, Request
from sp.runtime.agreement import Statement, check_agreement, checksum, draw_seed, exchange_statements
from sp.runtime.shards import BoundLayout
from sp.runtime.world import World, find_world
from sp.shelf import take
from sp.show import Report
from sp.validation import check_call

# What is large is compared on the first calls of each capture; ids and their like, and everything else, on every call.
CONTENT_CHECKS = 3
# With validate=True a capture is tried in a world of its own size, but of no more threads than these, or 2 x 2.
VALIDATION_RANKS = 4


class ParallelModule(Facade):
    """The same model, its sequence spread over the ranks.  Made by `sp.parallelize`.

    It shares the model's parameters, buffers and submodules under their own names, see `Facade`.  `.plain` is the model
    itself."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        super().__init__(model)
        self.__dict__["options"] = options
        self.__dict__["executables"] = list[Executable]()
        self.__dict__["agreed"] = dict[str, int]()  # calls that all ranks made alike, by their keys, in order

    @property
    def layout(self) -> BoundLayout:
        """Which rank holds which token: `.shard`, `.unshard`, `.positions`.  SpError while `auto` has not chosen."""
        return BoundLayout(find_layout(self.options.chosen.layout), self.options.group)

    @property
    def graph_module(self) -> fx.GraphModule:
        """The rewritten graph of the latest capture."""
        return self._latest().program.graph_module

    @property
    def captured(self) -> fx.GraphModule:
        """The graph of the latest capture, before any pass."""
        return self._latest().captured.graph_module

    def report(self) -> Report:
        """What was rewritten, and why."""
        latest, world = self._latest(), find_world(self.options.group).size
        return Report(latest.program, world, latest.lengths, latest.captured, self.executables[0].estimates)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own forward.  Whatever does not fit is raised on all ranks before any data is exchanged."""
        return self._agree_and_run(args, kwargs)

    @outside_of_graphs
    def _agree_and_run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        _refuse_transforms()
        world = find_world(self.options.group)
        request, held = self._agree_on_call(world, args, kwargs)
        lengths = request.lengths if held is None else (global_length(held, self.options),)
        executable = self._agree_on_program(world, request, lengths)
        if held is not None and self.options.inputs == CONTIGUOUS:
            request = dealt(request, held, self.layout)
        seed = draw_seed(world, self.options.generator, self._parameter_device()) if executable.is_noisy else None
        output = executable(self.plain, request, lengths, seed)
        watch_sums(output, lambda: self.options.sync_gradients)
        return output

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own `generate`, every forward of it on all ranks.  All ranks call it alike, and get the same.

        Keys and values stay on their ranks: a step sends a few numbers for each head.  RankMismatchError where tokens
        are sampled and the ranks' random states differ."""
        return generate(self, self.plain, find_world(self.options.group), args, kwargs)

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """For several backwards before one step of the optimizer: gradients are summed over the ranks once, at the end.

            with pmodel.no_sync():
                for batch in batches:
                    pmodel(**batch).loss.backward()
            optimizer.step()

        Unlike DDP's, it takes in the last backward too.  Where others sum (`sync_gradients=False`) nothing changes."""
        before = self.options
        if not before.sync_gradients:
            yield
            return
        self.__dict__["options"] = replace(before, sync_gradients=False)
        try:
            with summed_at_the_end(self.parameters(), find_world(before.group)):
                yield
        finally:
            self.__dict__["options"] = replace(self.options, sync_gradients=True)  # a strategy may have been chosen

    def capture(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Capture now, for calls like this one, without any communication.  Tensors are taken to be global."""
        request = Request.of(self.plain, args, kwargs, self.options.sequence_dim)
        self._executable(request, request.lengths)

    def __deepcopy__(self, memo: dict[int, Any]) -> ParallelModule:
        """A copy of the model over the same group; it captures anew."""
        return ParallelModule(copy.deepcopy(self.plain, memo), self.options)

    def _latest(self) -> Executable:
        if not self.executables:
            raise SpError(
                "nothing has been captured yet",
                remedy="call the model once, or pass example_args to parallelize",
            )
        return self.executables[-1]

    def _agree_on_call(
        self, world: World, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Request, list[int] | None]:
        """The call, and how many tokens each rank holds of it where inputs are local; every rank raises if any rank's
        call does not fit."""
        request, failure = None, None
        try:
            request = Request.of(self.plain, args, kwargs, self.options.sequence_dim)
            check_length(request, self.options, world)
            statement = self._statement(request)
        except SpError as error:
            failure, statement = error, Statement(error=str(error))
        statements = self._exchange(world, statement, failure)
        assert request is not None
        self.agreed.setdefault(request.key, len(self.agreed))
        if not self.options.local_inputs or request.past is not None:
            return request, None
        return request, [int(said.length) for said in statements]

    def _agree_on_program(self, world: World, request: Request, lengths: Lengths) -> Executable:
        """The executable for this call.  A new one is compared by hash: capture or passes may have failed elsewhere."""
        executable, failure = None, None
        try:
            executable = self._executable(request, lengths)
            if executable.agreed:
                return take(self.executables, executable)
            statement = Statement(program=executable.program.digest())
        except SpError as error:
            failure, statement = error, Statement(error=str(error))
        self._exchange(world, statement, failure)
        assert executable is not None
        executable.agreed = True
        return take(self.executables, executable)

    def _exchange(self, world: World, statement: Statement, failure: SpError | None) -> list[Statement]:
        statements = exchange_statements(world, statement, self._parameter_device())
        if failure is not None:
            raise failure
        check_agreement(statements, world.rank)
        return statements

    def _statement(self, request: Request) -> Statement:
        local = self.options.local_inputs
        calls = max((known.calls for known in self.executables if known.key == request.key), default=0)
        recent = calls < CONTENT_CHECKS
        triples = zip(request.tensors, request.call.kept, request.locals(local), strict=True)
        # New tokens are few, and ranks that have sampled different ones would go on with caches that do not fit.
        new = request.past is not None
        whole = [x for x, kept, part in triples if not part and (recent or (not kept and (new or _is_small(x))))]
        return Statement(
            request.shared,
            model=str(self.agreed.get(request.key, len(self.agreed))),
            gradients=gradients_word(self.parameters(), self.options.sync_gradients),
            shapes=request.shapes(local),
            contents=checksum(whole) if new or not local else "",
            length=str(request.lengths[0]),
        )

    def _executable(self, request: Request, lengths: Lengths) -> Executable:
        for known in self.executables:
            if known.fits(request, lengths) and known.sync_gradients == self.options.sync_gradients:
                return known
        start = time.perf_counter()
        made = build(self.plain, request, lengths, self.options)
        # What the first capture has chosen stays, whatever comes: callers hold shards and caches of that layout.
        self.__dict__["options"] = replace(self.options, strategy=made.program.strategy)
        if self.options.validate and request.past is None:
            self._validate(request, lengths)
        self.executables.append(made)
        note_capture(self.executables, type(self.plain).__name__, time.perf_counter() - start)
        return made

    def _validate(self, request: Request, lengths: Lengths) -> None:
        """Each rank by itself, in a world of its own threads: equal inputs, so that all pass or all raise."""
        args, kwargs = request.call.rebuild(request.tensors)
        shape = tuple(min(size, 2) for size in self.options.chosen.shape)
        world = prod(shape) if shape else min(find_world(self.options.group).size, VALIDATION_RANKS)
        options = replace(self.options, strategy=self.options.chosen.on(shape))
        report = check_call(self.plain, args, kwargs, options, world, length=lengths[0])
        if not report.exact:
            raise ValidationError(
                f"the transformed {report.model} does not compute what the model computes\n{report}",
                remedy="do not train with it; please report it with this table and the model",
            )

    def _parameter_device(self) -> torch.device:
        return next((value.device for value in self.parameters()), torch.device("cpu"))


def _is_small(x: torch.Tensor) -> bool:
    """A whole number for each token at most: cheap to compare, and what a loader gives."""
    return x.dim() <= 2 and not x.is_floating_point()


def _refuse_transforms() -> None:
    """Ranks talk during a call: a call may not be traced as part of a larger function."""
    if torch._C._are_functorch_transforms_active():
        raise SpError(
            "a parallelized model is called inside of a torch.func transform (grad, vmap, jvp, …)",
            remedy="torch.autograd.grad of torch.func.functional_call(pmodel, …); in place of vmap, a batch",
        )
