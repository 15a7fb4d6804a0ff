"""Modes: under which grad mode and which autocast each op was traced.

torch.export says so only by halves (2.13): a `no_grad` inside an `autocast` is lost, which would change gradients
silently.  So every op carries the modes that were in effect when the model called it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.traceback import annotate
from torch.overrides import TorchFunctionMode

from sp.passes.saved_tensors import Checkpoints

DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu")
_KEY = "sp_modes"


@dataclass(frozen=True)
class Modes:
    """grad: whether autograd records.  autocast: the dtype for each kind of device on which autocast is on."""

    grad: bool = True
    autocast: tuple[tuple[str, torch.dtype], ...] = ()

    @staticmethod
    def now() -> Modes:
        return Modes(torch.is_grad_enabled(), autocast_now())


def autocast_now() -> tuple[tuple[str, torch.dtype], ...]:
    return tuple((device, torch.get_autocast_dtype(device)) for device in DEVICES if torch.is_autocast_enabled(device))


@contextmanager
def without_autocast() -> Generator[None]:
    """For what says its casts itself."""
    with ExitStack() as stack:
        for device, _ in autocast_now():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


class Watch(TorchFunctionMode):
    """While a model is traced: each op's node gets the modes of its call, and the checkpoint that it is part of.

    Trace under `preserve_node_meta`."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints = Checkpoints()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.compiler.is_dynamo_compiling():  # it traces flex_attention, and this mode with it
            return func(*args, **(kwargs or {}))
        with annotate({_KEY: Modes.now(), **self.checkpoints.mark()}):
            return func(*args, **(kwargs or {}))


def modes_of(node: fx.Node) -> Modes | None:
    """What `Watch` has noted for this op, None for what it has not seen (inputs, sizes)."""
    return node.meta.get("custom", {}).get(_KEY)


def is_quiet(node: fx.Node) -> bool:
    """Whether the op was called under `no_grad`: its result needs no gradient, whatever it is computed from."""
    modes = modes_of(node)
    return modes is not None and not modes.grad


def forget_modes(node: fx.Node) -> None:
    if "custom" in node.meta:
        node.meta = {**node.meta, "custom": {key: kept for key, kept in node.meta["custom"].items() if key != _KEY}}
