"""Modes: under which grad mode and which autocast each op was traced.

torch.export says so only by halves (2.13): a `no_grad` inside an `autocast` is lost, `inference_mode` leaves no trace,
and of an `autograd.Function` only the forward is recorded.  Each would change gradients silently.  So every op carries
the modes that were in effect when the model called it, and what has no functional form is refused while tracing.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch.fx.traceback import annotate
from torch.overrides import TorchFunctionMode

from sp.errors import UnsupportedModelError

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
    """While a model is traced: each op's node gets the modes of its call.  Trace under `preserve_node_meta`.

    Raises UnsupportedModelError for inference mode and for an autograd.Function: grad mode then changes although the
    model has not changed it."""

    def __init__(self) -> None:
        super().__init__()
        self.grad = torch.is_grad_enabled()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.is_inference_mode_enabled():
            raise UnsupportedModelError(
                f"the model enters torch.inference_mode(), which torch.export does not record{_place()}",
                remedy="use torch.no_grad() inside the model; around its call, inference_mode is fine",
            )
        if torch.is_grad_enabled() != self.grad:
            raise UnsupportedModelError(
                "the model calls a torch.autograd.Function (or torch.utils.checkpoint with use_reentrant=True): "
                f"torch.export records its forward and drops its backward{_place()}",
                remedy="write it with ordinary ops, or as torch.library.custom_op; checkpoint with use_reentrant=False",
            )
        with annotate({_KEY: Modes.now()}):
            result = func(*args, **(kwargs or {}))
        if func is torch._C._set_grad_enabled:
            self.grad = cast(bool, args[0])
        return result


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


def _place() -> str:
    frames = [frame for frame in traceback.extract_stack() if "/torch/" not in frame.filename]
    frames = [frame for frame in frames if "/sp/passes/" not in frame.filename]
    return f"\n  at:     {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
