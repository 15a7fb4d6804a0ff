"""Witness: watches one trace of a model for what no graph can hold, and refuses it.

    self.calls += 1                              a number that changes from call to call would be frozen
    x.register_hook(…), Function.apply(x)        the graph has autograd's own gradient, not the one asked for
    with torch.inference_mode(): …               the graph would give gradients where the model has none
    random.random()                              one number for all calls
    with save_on_cpu(): …                        what autograd keeps is not the graph's to say

torch.export drops each of these without a word.  What it cannot see either is a model that asks whether it is traced.
"""

from __future__ import annotations

import inspect
import random
import re
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from sp.errors import Refusal, UnsupportedModelError
from sp.passes.constants import NO_PARAMETER, REGISTER, is_real
from sp.passes.fxtools import UNKNOWN
from sp.passes.saved_tensors import has_strange_hooks

_HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
_INFERENCE = "torch.inference_mode"
_PLAIN = (bool, int, float, complex, str, type(None))
_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})
_PASSES, _TORCH = __file__.removesuffix("witness.py"), torch.__file__.removesuffix("__init__.py")


class Witness(TorchFunctionMode):
    """A context around one call of `model`; leaving it raises UnsupportedModelError with all that was seen.

    What the call has changed in the model's attributes is put back then: it may hold tensors without values."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.seen: dict[str, Refusal] = {}
        self.returned = False

    def __enter__(self) -> Witness:
        own = [(path, module) for path, module in self.model.named_modules() if not _is_torchs(module)]
        self.before = {path: _State.of(module) for path, module in own}
        self.random = random.getstate()
        self.inference = torch.is_inference_mode_enabled()
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        changed = [refused for name, state in self.before.items() for refused in state.restored(name)]
        if random.getstate() != self.random:
            changed.append(_by_python())
        if (kind is None and (self.seen or changed)) or _INFERENCE in self.seen:  # autograd refuses its tensors
            refusals = [*self.seen.values(), *changed]
            raise UnsupportedModelError("the model does what one graph cannot do at every call", refusals=refusals)

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if self.returned or torch.compiler.is_dynamo_compiling():  # which traces flex_attention, and this mode with it
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _HOOKS:
            self._see(f"Tensor.{name}", "a hook on a gradient is no part of a graph", _USE_OPS)
        if torch.is_inference_mode_enabled() and not self.inference:
            self._see(_INFERENCE, "a graph gives gradients to what it computes", "use torch.no_grad()")
        if has_strange_hooks():
            why = "what becomes of tensors that autograd keeps is no part of a graph"
            self._see("torch.autograd.graph.saved_tensors_hooks", why, _OPEN_OUTSIDE)
        self._gradients([argument for argument in args if isinstance(argument, Tensor)])
        self._loose([*args, *(kwargs or {}).values()])
        return func(*args, **(kwargs or {}))

    def results(self, tensors: Sequence[Tensor]) -> None:
        """Look at what the model returns, which no function may have seen."""
        self.returned = True
        self._gradients(tensors)

    def _gradients(self, tensors: Sequence[Tensor]) -> None:
        """Refuse tensors whose gradient somebody else than autograd's own ops computes."""
        for tensor in tensors:
            if tensor._is_view() and tensor._version:
                continue  # to ask for its grad_fn would trace ops that make it anew
            function = getattr(type(tensor.grad_fn), "_forward_cls", type(tensor.grad_fn))
            if isinstance(tensor.grad_fn, BackwardCFunction) and not _is_an_ops(function):
                why = "its own backward is lost: the graph has that of the ops in it"
                remedy = _NOT_REENTRANT if function is CheckpointFunction else _USE_OPS
                self._see(f"{function.__name__}.apply", why, remedy, place_of(function) if self.returned else None)

    def _loose(self, arguments: Sequence[object]) -> None:
        """Refuse tensors that train and that the model does not hold: tracing takes them for constants."""
        for each in arguments:
            if is_real(each) and each.requires_grad:
                self._see("a tensor that trains", NO_PARAMETER, REGISTER)
            elif isinstance(each, (list, tuple)):
                self._loose(cast("Sequence[object]", each))

    def _see(self, node: str, why: str, remedy: str, place: str | None = None) -> None:
        self.seen.setdefault(node, Refusal(node, place or caller(), why, remedy))


def _is_an_ops(function: type) -> bool:
    """The autograd.Function by which torch calls the backward of a registered op, or of a branch: it stays there."""
    return function.__module__.startswith(("torch._library", "torch._higher_order_ops"))


_NOT_REENTRANT = "torch.utils.checkpoint.checkpoint(…, use_reentrant=False), which is recomputed in backward too"
_OPEN_OUTSIDE = "open them (or save_on_cpu) around the call of the parallelized model"
_USE_OPS = "write it with ops (y + (x - y).detach() for a gradient of your own), or as a torch.library.custom_op"


def caller() -> str:
    """The innermost line outside of torch and of sp's passes."""
    inner = (_TORCH, _PASSES, "<")
    frames = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(inner)]
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else UNKNOWN


def place_of(thing: Any) -> str:
    """Where a class or function is written; of a partial its function, of any other object its class."""
    while isinstance(thing, partial):
        thing = thing.func
    if not hasattr(thing, "__name__"):
        thing = type(thing)
    try:
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]} in {thing.__name__}"
    except (OSError, TypeError):
        return UNKNOWN


def _is_torchs(module: nn.Module) -> bool:
    """Layers of torch change nothing but buffers, in place, which `normalize` sees; an RNN renews lists of weights."""
    return type(module).__module__.startswith("torch.")


@dataclass(frozen=True)
class _State:
    """The attributes of one module, and what its containers held, before a call."""

    module: nn.Module
    attributes: Mapping[str, object]
    contents: Mapping[str, Any]

    @staticmethod
    def of(module: nn.Module) -> _State:
        attributes = dict(vars(module))
        containers = {name: value for name, value in attributes.items() if isinstance(value, (list, dict, set, deque))}
        return _State(module, attributes, {name: value.copy() for name, value in containers.items()})

    def restored(self, path: str) -> Iterator[Refusal]:
        """A refusal for each attribute that has changed; it is as before then."""
        for name in dict.fromkeys((*self.attributes, *vars(self.module))):
            if self._same(name):
                continue
            shown = self._changed_entry(name) if name in _REGISTRIES else name
            self._restore(name)
            yield Refusal(
                f"{path or type(self.module).__name__}.{shown}",
                self._line(shown),
                "forward changes it, and a graph would keep what it was at the first call",
                "pass it in and return it, or keep it out of forward; if a first call alone does it, call the plain "
                "model once before",
            )

    def _same(self, name: str) -> bool:
        now = vars(self.module)
        if (name in now) != (name in self.attributes):
            return False
        if name not in self.contents:
            return _alike(now[name], self.attributes[name])
        old, new = self.contents[name], now[name]
        if new is not self.attributes[name] or len(old) != len(new):
            return False
        if isinstance(old, dict):
            return all(key in new and _alike(new[key], value) for key, value in cast(dict[object, object], old).items())
        return all(_alike(a, b) for a, b in zip(new, old, strict=True))

    def _changed_entry(self, registry: str) -> str:
        old, new = self.contents[registry], cast("dict[str, object]", vars(self.module)[registry])
        return next(key for key in (*old, *new) if old.get(key) is not new.get(key))

    def _restore(self, name: str) -> None:
        if name not in self.attributes:
            del vars(self.module)[name]
            return
        value = cast(Any, self.attributes[name])
        if name in self.contents:
            value.clear()
            (value.extend if isinstance(value, (list, deque)) else value.update)(self.contents[name])
        vars(self.module)[name] = value

    def _line(self, name: str) -> str:
        """The line of its forward that speaks of the attribute, most likely."""
        forward = type(self.module).forward
        place = place_of(forward)
        if place == UNKNOWN:
            return place
        lines, first = inspect.getsourcelines(forward)
        spoken = [number for number, line in enumerate(lines) if re.search(rf"\.{re.escape(name)}\b", line)]
        return f"{inspect.getsourcefile(forward)}:{first + (spoken[0] if spoken else 0)} in forward"


def _alike(a: object, b: object) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b)


def _by_python() -> Refusal:
    why = "a number from Python's random module is the same at every call of a graph"
    return Refusal("random", UNKNOWN, why, "draw it outside of the model and pass it in")
