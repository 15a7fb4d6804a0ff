"""A model as torch.export takes it, for the time that it is captured; what could not be in the graph is refused."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from torch import nn

from sp.errors import UnsupportedModelError
from sp.fsdp import stand_ins
from sp.passes.saved_tensors import callers_hooks_aside
from sp.passes.witness import place_of
from sp.traces import Texts, swept

# Tracing and symbolic sizes belong to the process, not to the thread: ranks that are threads take turns.  Who has the
# turn may build several times in it, and run what is built (validation): nobody traces meanwhile.
TURN = threading.RLock()


@contextmanager
def for_building(model: nn.Module) -> Generator[Texts]:
    """This thread's turn, with parameters of full size, and without what the caller has around the call."""
    with TURN, _as_parameters(model), stand_ins(model), callers_hooks_aside(), swept() as texts:
        yield texts


@contextmanager
def for_looking(model: nn.Module) -> Generator[None]:
    """This thread's turn, for a capture that nothing is built from."""
    with TURN, _as_parameters(model), swept():
        yield


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


def refuse_backward_hooks(model: nn.Module) -> None:
    """torch.export leaves them out.  UnsupportedModelError names the module, and the line of the hook."""
    for path, module in model.named_modules():
        for hook in (*module._backward_hooks.values(), *module._backward_pre_hooks.values()):
            owner = f"{path!r} of the model" if path else "the model"
            raise UnsupportedModelError(
                f"{owner} has a backward hook\n  at:     {place_of(hook)}",
                needed="a model whose backward is that of its forward: a graph runs no hook of backward",
                remedy="register it on the parallelized model, or hooks on parameters (parameter.register_hook)",
            )
