"""Executable: one capture of a model, taken through the passes, bound to a group and ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import sympy
import torch
from torch import Tensor, fx, nn

from sp.caches import Kept, can_grow, closed, grown, leave_behind, sharded_cache
from sp.choice import choose, estimate_program
from sp.costs import Estimates
from sp.divisors import check_divisors
from sp.errors import InputError, StrategyError
from sp.fitting import origin
from sp.fsdp import Hooks, sharded_modules
from sp.options import BLOCKS, Options
from sp.passes import distribution, preparation
from sp.passes.bind import bind
from sp.passes.capture import Outputs, accepts, capture
from sp.passes.checkpoint import marked, with_regions
from sp.passes.manager import run_passes
from sp.passes.modes import without_autocast
from sp.passes.pieces import block_paths, cut
from sp.passes.tables import Tables
from sp.pieces import assemble
from sp.program import LENGTH_CARRIER, NOISE_SEED, Program
from sp.request import Lengths, Request
from sp.runtime.world import find_world, seat_name
from sp.slots import Slot, slots_of
from sp.strategy import STRATEGIES, Strategy
from sp.traceable import for_building, for_looking, refuse_backward_hooks


@dataclass
class Executable:
    """captured, program: before and after the passes.  run: the bound graph, compiled if so asked.
    estimates: what the strategy was chosen by, if it was.
    sync_gradients: whether backward sums them over the ranks.  calls: how often it ran.  agreed: whether all ranks were
    seen to hold the same program.  used: when it was last called, see `shelf`.  shared, state: those of the request.
    group: the world's name, see `Options`."""

    key: str
    captured: Program
    program: Program
    outputs: Outputs
    bound: fx.GraphModule
    run: Callable[..., Any]
    lengths: Lengths
    sync_gradients: bool = True
    estimates: Estimates | None = None
    calls: int = 0
    agreed: bool = False
    used: int = 0
    slots: list[Slot] = field(default_factory=list[Slot])
    tables: Tables | None = None
    shared: str = ""
    state: str = ""
    group: str = ""

    def fits(self, request: Request, lengths: Sequence[int]) -> bool:
        if request.key != self.key:
            return False
        pairs = zip(self.program.sequences, lengths, strict=True)
        return all(sequence.holds(length) for sequence, length in pairs) and accepts(self.captured, request.tensors)

    @property
    def is_noisy(self) -> bool:
        """Whether it drops out, and so needs a seed."""
        return any(port.name == NOISE_SEED for port in self.program.inputs)

    def __call__(self, model: nn.Module, request: Request, lengths: Lengths, seed: Tensor | None = None) -> Any:
        """Run on this rank.  lengths: of the whole sequences.  seed: int64 [], the same on every rank."""
        for slot in self.slots:
            slot.refresh(model)
        self.calls += 1
        self.lengths = lengths
        carried = self._carried(lengths, seed)
        added = [carried[port.name] for port in self.program.inputs if port.is_added]
        with without_autocast():  # the graph has the caller's casts already
            output = self.outputs.rebuild(Hooks(model).around(self.run, *request.tensors, *added))
        return self._closed(output, request)

    def check_indices(self, request: Request) -> None:
        """InputError for ids, labels and positions that no table has.  The same on all ranks, if inputs are global."""
        if self.tables is not None:
            carried = self._carried(request.lengths, None)
            added = [carried[port.name] for port in self.captured.inputs if port.is_added]
            self.tables.check([*request.tensors, *added])

    @staticmethod
    def _carried(lengths: Lengths, seed: Tensor | None) -> dict[str, Tensor | None]:
        """What is passed beside the caller's own tensors."""
        return {LENGTH_CARRIER: torch.empty(lengths[0], 0, device="cpu"), NOISE_SEED: seed}

    def _closed(self, output: Any, request: Request) -> Any:
        """With dataclasses, and transformers' own caches: the one that was passed, where the model returns it."""
        make = self._cache_maker(request)
        passed = next((cache for cache in request.caches if self.outputs.grows and can_grow(cache)), None)
        for cache in request.caches:
            if cache is not passed:
                leave_behind(cache)
        return closed(output, make if passed is None else lambda kept: grown(passed, make(kept)))

    def _cache_maker(self, request: Request) -> Callable[[Kept], Any]:
        """Of whole caches; those that are not gathered know how long the whole is."""
        kept = [port for port in self.program.outputs if port.kept]
        if not kept or not kept[0].local or kept[0].total is None:
            return Kept.close
        sizes = {one.symbol: length for one, length in zip(self.program.sequences, self.lengths, strict=True)}
        total = int(cast(sympy.Integer, kept[0].total.xreplace(sizes)))
        dealt = origin(self.program.strategy.layout, find_world(self.group), request.calls(self.calls))
        return lambda kept: sharded_cache(kept, total, dealt)


def build(
    model: nn.Module, request: Request, lengths: Lengths, options: Options, mesh: tuple[int, ...] | None = None
) -> Executable:
    """Capture `model` for calls like `request` over global `lengths`, transform, bind and compile it.

    mesh: how many ranks there are, for a choice of the strategy; None asks the group."""
    refuse_backward_hooks(model)
    if sharded := sharded_modules(model):
        check_divisors(model, sharded, find_world(options.group).ranks, options.sync_gradients)
    with for_building(model) as texts:
        captured, outputs = _captured(model, request, lengths, options)
        prepared, estimates = run_passes(captured, preparation(options.outputs)), None
        if options.strategy is None:
            shape = find_world(options.group).shape if mesh is None else mesh
            estimates = estimate_program(prepared, request.tensors, lengths, options, shape, model)
            captured, prepared = (replace(each, strategy=choose(estimates)) for each in (captured, prepared))
        sync, averaged, tables = options.sync_gradients, options.averaged, Tables.of(prepared)
        passes = distribution(outputs=options.outputs, kernel=options.kernel, sync_gradients=sync, averaged=averaged)
        program = marked(run_passes(prepared, passes), options.checkpoint)
        _check_lengths(program, lengths, type(model).__name__)
        outputs = outputs.without({port.name for port in captured.outputs} - {port.name for port in program.outputs})
        texts.owner = bound = bind(program, seat_name(options.group))
        run, slots = _runnable(bound, model, options, sharded)
    made = Executable(request.key, captured, program, outputs, bound, run, lengths, sync, estimates, slots=slots)
    return replace(made, shared=request.shared, state=request.state, tables=tables, group=options.group)


def estimate_call(
    model: nn.Module,
    request: Request,
    lengths: Lengths,
    options: Options,
    mesh: tuple[int, ...],
    only: Sequence[Strategy] | None,
) -> Estimates:
    """What such a call over global `lengths` would take under each strategy, or some.  Nothing is transformed."""
    with for_looking(model):
        captured, _ = _captured(model, request, request.lengths, options)
        prepared = run_passes(captured, preparation(options.outputs))
        _check_lengths(prepared, lengths, type(model).__name__)
        return estimate_program(prepared, request.tensors, lengths, options, mesh, model, only)


def _captured(model: nn.Module, request: Request, lengths: Lengths, options: Options) -> tuple[Program, Outputs]:
    return capture(
        model,
        request.call,
        request.tensors,
        sequence_dim=options.sequence_dim,
        strategy=options.strategy or next(iter(STRATEGIES.values())),  # one to be replaced: no preparation reads it
        length=lengths[0] if options.local_inputs else None,
        local_inputs=options.local_inputs,
        past=request.past,
    )


def _check_lengths(program: Program, lengths: Lengths, name: str) -> None:
    """Capture has checked what it holds for; passes may have narrowed that."""
    for sequence, length in zip(program.sequences, lengths, strict=True):
        if not sequence.holds(length):
            raise InputError(
                f"one graph of {name} does not hold for a sequence of {length} tokens",
                needed=f"{sequence.shortest} … {sequence.longest or '∞'} tokens",
            )


def _runnable(
    bound: fx.GraphModule, model: nn.Module, options: Options, sharded: Sequence[str]
) -> tuple[Callable[..., Any], list[Slot]]:
    """What to call, and the parameters that it holds by itself."""
    if not sharded and options.compile != BLOCKS:
        whole = with_regions(bound)
        return _compiled(whole, options), slots_of(whole, model)
    parts = cut(bound, [path for path in sharded if path] if sharded else block_paths(bound.graph))
    if sharded and parts.open:
        raise StrategyError(
            f"{parts.open[0]!r} cannot run by itself: {parts.open[1]!r} runs between its parts",
            needed="modules that run one after another, each with its parameters in place",
            remedy="call fully_shard on the module around both",
        )
    return assemble(parts, bound, model, lambda code: _compiled(with_regions(code), options)), []


def _compiled(module: fx.GraphModule, options: Options) -> Callable[..., Any]:
    """One graph for all lengths; a caller's own settings come last."""
    if not options.compile:
        return module
    given: dict[str, Any] = {"dynamic": True, "fullgraph": True}
    given.update(options.compile if isinstance(options.compile, Mapping) else {})
    if options.memory_budget < 1:
        from sp.passes.partition import Partition  # imports Inductor

        given["options"] = {**given.get("options", {}), "custom_partitioner_fn": Partition(options.memory_budget)}
    # its forward: torch.fx wraps the call of a module in what Dynamo cannot trace, and would hide an error of the graph
    return torch.compile(module.forward, **given)
