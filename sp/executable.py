"""Executable: one capture of a model, taken through the passes, bound to a group and ready to run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from sp.options import Options
from sp.passes import pipeline
from sp.passes.bind import bind
from sp.passes.capture import Outputs, accepts, capture
from sp.passes.manager import run_passes
from sp.passes.modes import without_autocast
from sp.program import Program
from sp.request import Request
from sp.runtime.comm import seat_name

# Tracing and symbolic sizes belong to the process, not to the thread: ranks that are threads take turns.
_TRACING = threading.Lock()


@dataclass
class Executable:
    """captured, program: before and after the passes.  run: the bound graph, compiled if so asked.
    calls: how often it ran.  agreed: whether all ranks were seen to hold the same program."""

    key: str
    captured: Program
    program: Program
    outputs: Outputs
    bound: fx.GraphModule
    run: Callable[..., Any]
    length: int
    calls: int = 0
    agreed: bool = False
    slots: list[Slot] = field(default_factory=list["Slot"])

    def fits(self, request: Request, length: int) -> bool:
        sequence = self.program.sequence
        within = sequence.shortest <= length <= (sequence.longest or length)
        return request.key == self.key and within and accepts(self.captured, request.tensors)

    def __call__(self, model: nn.Module, tensors: Sequence[Tensor], length: int) -> Any:
        """Run on this rank.  length: of the whole sequence."""
        for slot in self.slots:
            slot.refresh(model)
        carried = [torch.empty(length, 0)] if len(self.program.inputs) > len(tensors) else []
        self.calls += 1
        self.length = length
        with without_autocast():  # the graph has the caller's casts already
            return self.outputs.rebuild(self.run(*tensors, *carried))


@dataclass(frozen=True)
class Slot:
    """A parameter or buffer that the graph reads: its holder there, and its place in the model."""

    holder: nn.Module
    attribute: str
    path: str
    name: str

    def refresh(self, model: nn.Module) -> None:
        """Follow the model where it has replaced the tensor object since capture (`.to()` replaces buffers)."""
        owner = model.get_submodule(self.path)
        current = getattr(owner, self.name)
        if getattr(self.holder, self.attribute) is current:
            return
        if self.attribute in self.holder._parameters:  # torch.func.functional_call puts plain tensors there
            self.holder._parameters[self.attribute] = current
        else:
            setattr(self.holder, self.attribute, current)


def build(model: nn.Module, request: Request, length: int, options: Options) -> Executable:
    """Capture `model` for calls like `request` over a global `length`, transform, bind and compile it."""
    with _TRACING, _as_parameters(model):
        captured, outputs = capture(
            model,
            request.call,
            request.tensors,
            sequence_dim=options.sequence_dim,
            strategy=options.strategy,
            length=length,
            local_inputs=options.local_inputs,
        )
        program = run_passes(captured, pipeline(outputs=options.outputs, kernel=options.kernel))
        bound = bind(program, seat_name(options.group))
        run = _compiled(bound, options.compile) if options.compile else bound
    return Executable(request.key, captured, program, outputs, bound, run, length, slots=_slots(bound, model))


@contextmanager
def _as_parameters(model: nn.Module) -> Generator[None]:
    """Under `torch.func.functional_call` a model's parameters are plain tensors, which torch.export refuses."""
    places = [(module._parameters, name) for module in model.modules() for name in module._parameters]
    plain = [
        (held, name, held[name]) for held, name in places if not isinstance(held[name], (nn.Parameter, type(None)))
    ]
    made = {id(value): nn.Parameter(value.detach()) for _, _, value in plain if value is not None}
    for held, name, value in plain:
        held[name] = made[id(value)]
    try:
        yield
    finally:
        for held, name, value in plain:
            held[name] = value


def _compiled(bound: fx.GraphModule, settings: bool | Mapping[str, Any]) -> Callable[..., Any]:
    """One graph for all lengths; a caller's own settings come last."""
    given: dict[str, Any] = {"dynamic": True, "fullgraph": True}
    given.update({} if isinstance(settings, bool) else settings)
    return torch.compile(bound, **given)


def _slots(bound: fx.GraphModule, model: nn.Module) -> list[Slot]:
    """Where the graph's parameters and buffers come from.  Constants made by tracing have no place in the model."""
    slots: list[Slot] = []
    for node in bound.graph.find_nodes(op="get_attr"):
        path, _, name = str(node.target).rpartition(".")
        own = path.removeprefix("model").removeprefix(".")
        if (path == "model" or path.startswith("model.")) and hasattr(model.get_submodule(own), name):
            slots.append(Slot(bound.get_submodule(path), name, own, name))
    return slots
