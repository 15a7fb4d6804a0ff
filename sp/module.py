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

from sp.accord import Accord
from sp.captures import note_call, note_capture
from sp.course import passing
from sp.errors import SpError, ValidationError
from sp.executable import Executable, build
from sp.facade import Facade, outside_of_graphs
from sp.fitting import dealt, global_length
from sp.gate import Gate
from sp.generation import generate
from sp.gradients import averaged_at_the_end, watch_sums
from sp.handshake import Handshake, worded
from sp.layout import find_layout
from sp.options import CONTIGUOUS, Options
from sp.request import Lengths, Request
from sp.runtime.agreement import Statement, draw_seed
from sp.runtime.faults import failing_together
from sp.runtime.shards import BoundLayout
from sp.runtime.world import find_world
from sp.shelf import take
from sp.show import Report
from sp.transforms import refuse_transforms
from sp.validation import check_call

# With validate=True a capture is tried in a world of its own size, but of no more threads than these, or 2 x 2.
VALIDATION_RANKS = 4


class ParallelModule(Facade):
    """The same model, its sequence spread over the ranks.  Made by `sp.parallelize`.

        >>> pmodel(ids, labels=ids).logits.shape  # pmodel.forward, as torch calls it
        torch.Size([1, 24, 256])
        >>> pmodel.capture((ids,), {"labels": ids})
        >>> len(pmodel.graph_module.graph.nodes) > len(pmodel.captured.graph.nodes)
        True
        >>> pmodel.layout.name, pmodel.report()
        ('striped', <Report: striped, world 1, 24 tokens>)

    It shares the model's parameters, buffers and submodules under their own names, see `Facade`.  `.plain` is the model
    itself."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        super().__init__(model)
        self.__dict__["options"] = options
        self.__dict__["executables"] = list[Executable]()
        self.__dict__["accord"] = Accord(model)
        self.__dict__["gate"] = Gate()

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
        """As the model's own forward.

        Raises InputError, RankMismatchError or UnsupportedModelError, on all ranks and before any data is exchanged."""
        return self._agree_and_run(args, kwargs)

    @outside_of_graphs
    def _agree_and_run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        refuse_transforms(self.parameters(), (args, kwargs))
        world = find_world(self.options.group)
        with self.gate.entered(world) as refusal, passing(self.options.place):
            return self._run(Handshake(world, self._parameter_device()), args, kwargs, refusal)

    def _run(self, shake: Handshake, args: Sequence[Any], kwargs: Mapping[str, Any], refusal: SpError | None) -> Any:
        request, held = self.accord.on_call(shake, (args, kwargs), self.options, self.executables, refusal)
        lengths = request.lengths if held is None else (global_length(held, self.options),)
        executable = self._agree_on_program(shake, request, lengths)
        if held is not None and self.options.inputs == CONTIGUOUS:
            request = dealt(request, held, self.layout)
        seed = draw_seed(shake.world, self.options.generator, shake.device) if executable.is_noisy else None
        note_call(executable, self.options.group)
        with failing_together(shake.world, f"call {executable.calls + 1} of {type(self.plain).__name__}"):
            output = executable(self.plain, request, lengths, seed)
        watch_sums(output, lambda: self.options.sync_gradients)
        return output

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own `generate`, every forward of it on all ranks.  All ranks call it alike, and get the same.

            >>> class Greedy(GPT):
            ...     def generate(self, ids):  # a single token
            ...         return torch.cat([ids, self(ids).logits[:, -1:].argmax(-1)], 1)
            >>> greedy = Greedy(GPTConfig(layers=1, heads=2, width=16))
            >>> sp.parallelize(greedy, compile=False).generate(ids).shape
            torch.Size([1, 25])

        Keys and values stay on their ranks: a step sends a few numbers for each head.  RankMismatchError where tokens
        are sampled and the ranks' random states differ."""
        return generate(self, self.plain, self.options, args, kwargs)

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """For several backwards before one step of the optimizer: gradients are summed over the ranks once, at the end.

            >>> with pmodel.no_sync():
            ...     for batch in (ids, ids.flip(1)):
            ...         pmodel(batch, labels=batch).loss.backward()

        Unlike DDP's, it takes in the last backward too.  Where others sum (`sync_gradients=False`) nothing changes."""
        before = self.options
        if not before.sync_gradients:
            yield
            return
        self.__dict__["options"] = replace(before, sync_gradients=False, averaged=True)
        try:
            with averaged_at_the_end(self.parameters(), find_world(before.group)):
                yield
        finally:
            # Not `before`: a strategy may have been chosen.
            self.__dict__["options"] = replace(self.options, sync_gradients=True, averaged=False)

    def capture(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Capture now, for calls like this one, without any communication.  Tensors are taken to be global."""
        request = Request.of(self.plain, args, kwargs, self.options.sequence_dim)
        self._executable(request, request.lengths)

    def __deepcopy__(self, memo: dict[int, Any]) -> ParallelModule:
        """A copy of the model over the same group; it captures anew."""
        return ParallelModule(copy.deepcopy(self.plain, memo), self.options)

    def __reduce__(self) -> tuple[type[ParallelModule], tuple[nn.Module, Options]]:
        """Pickled alike: captures and agreements are of one process."""
        return ParallelModule, (self.plain, self.options)

    def _latest(self) -> Executable:
        if not self.executables:
            raise SpError(
                "nothing has been captured yet",
                remedy="call the model once, or pass example_args to parallelize",
            )
        return self.executables[-1]

    def _agree_on_program(self, shake: Handshake, request: Request, lengths: Lengths) -> Executable:
        """The executable for this call.  A new one is compared by hash: capture or passes may have failed elsewhere."""
        executable, failure, text = None, None, ""
        try:
            executable = self._executable(request, lengths)
            if executable.agreed:
                return take(self.executables, executable)
            executable.check_indices(request)
            text = executable.program.text()
            statement = Statement(program=executable.program.digest())
        except Exception as error:  # noqa: BLE001 - raised, once the others know
            failure, statement = error, Statement(error=worded(error))
        shake.exchange(statement, failure, lambda _: f"{text}\n{request.state}")
        assert executable is not None
        executable.agreed = True
        return take(self.executables, executable)

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
        note_capture(self.executables, type(self.plain).__name__, time.perf_counter() - start, self.options.group)
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
        return next((value.device for value in self.parameters() if not value.is_meta), torch.device("cpu"))
