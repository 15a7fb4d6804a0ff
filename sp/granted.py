"""What a graph takes for granted of its model, as text.  Where that changes, the model is captured anew.

    model.eval(), model.float()                         modes, dtypes, devices
    model.head.weight = nn.Parameter(…)                 which tensors there are, of what shapes, which are the same one
    model.dropout.p = 0.2, block.window = 128           plain values that `forward` may read, of its class too,
    model.config.window = 64                            and of dataclasses, namespaces and configs, see `settings`
    model.blocks[3] = other, block.register_forward_hook(…)
    fully_shard(model)                                  who puts parameters in place
    torch.set_default_dtype(torch.float64)              what tensors are made of that `forward` makes

What tensors contain is not in it, nor whether they train: a graph reads that when it runs.

Every call reads all of these facts; what is written of them, a pure function of the facts, is kept for the next call,
which mostly finds the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

from sp.fsdp import is_fsdps
from sp.inventory import Inventory
from sp.settings import called, held, is_settings, like, shown

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, complex, str, type(None))
_END = "\n"


class _Facts(NamedTuple):
    """words: compared by ==, which tells apart what is written differently: text, whole numbers, True and False,
    dtypes, devices and shapes, but no numbers of the user's, of which 1, 1.0 and True are equal.  They are one flat
    list, as thousands of small ones would keep the garbage collector busy at each call.  A line ends in _END.
    training: of each module."""

    words: list[object]
    training: list[bool]


@dataclass(frozen=True)
class State:
    """text: all of it, the same on all ranks that hold the same model.  word: its hash.
    modes: what ranks have most likely set apart, in lines: modes, dtypes and devices."""

    text: str
    word: str
    modes: tuple[str, ...]


def model_state(model: nn.Module) -> State:
    return _written(_facts(Inventory.of(model)))


class Granted:
    """The state of one model, call after call."""

    def __init__(self) -> None:
        self._last: tuple[_Facts, State] | None = None

    def state(self, inventory: Inventory) -> State:
        facts = _facts(inventory)
        if self._last is None or self._last[0] != facts:
            self._last = facts, _written(facts)
        return self._last[1]


def difference(before: str, now: str) -> str:
    """A line of one state that the other has not."""
    old = set(before.splitlines())
    return next((line for line in now.splitlines() if line not in old), "something that is gone")[:200]


def _facts(inventory: Inventory) -> _Facts:
    kinds = {kind: _kind(kind) for kind in {type(module): None for _, module in inventory.modules}}
    words: list[object] = [f"defaults: {torch.get_default_dtype()} {torch.get_default_device()}", _END]
    numbers, configs, training = dict[int, int](), set[int](), list[bool]()
    for path, module in inventory.modules:
        training.append(bool(module.training))
        words += (path, kinds[type(module)], training[-1])
        _add_tensors(words, module, numbers)
        _add_hooks(words, module)
        for name, child in module._modules.items():
            words += (name, _number(child, numbers))
        words.append(_END)
        _add_values(words, path, module, numbers, configs)
    words += _of_classes(kinds)
    return _Facts(words, training)


def _kind(kind: type[nn.Module]) -> str:
    return f"{kind.__module__}.{kind.__qualname__} {called(kind.forward)}"


def _number(thing: object, numbers: dict[int, int]) -> int:
    """The same for the same thing: two names of one parameter are told from two parameters."""
    return numbers.setdefault(id(thing), len(numbers))


def _add_tensors(words: list[object], module: nn.Module, numbers: dict[int, int]) -> None:
    """Parameters count as trained in any case: they are frozen and thawed without a new graph."""
    for name, value in module._parameters.items():
        words += (name, None) if value is None else (name, _number(value, numbers), *like(value), "parameter")
    for name, value in module._buffers.items():
        words += (name, None) if value is None else (name, _number(value, numbers), *like(value), value.requires_grad)


def _add_hooks(words: list[object], module: nn.Module) -> None:
    """FSDP's by one word: it adds and removes some of them as it likes."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    to_backward, in_backward = module._backward_pre_hooks, module._backward_hooks
    if before or after or to_backward or in_backward:
        registries = {"before": before, "after": after, "backward": in_backward, "before backward": to_backward}
        found = [(when, hook) for when, hooks in registries.items() for hook in hooks.values()]
        words += ("fully_shard" if is_fsdps(hook) else f"{when} {called(hook)}" for when, hook in found)


def _add_values(words: list[object], path: str, module: nn.Module, numbers: dict[int, int], configs: set[int]) -> None:
    for name, value in vars(module).items():
        if name in _OF_EVERY_MODULE:
            continue
        known = id(value) in configs
        if not known and not is_settings(name, value):
            words += (f"{path}{name} =", str(shown(value)), _END)
            continue
        words += (f"{path}{name} is", _number(value, numbers), _END)
        if not known:  # many modules share one
            configs.add(id(value))
            for key, each in held(value):
                words += (f"{path}{name}.{key} =", str(each), _END)


def _of_classes(kinds: Iterable[type]) -> Iterator[str]:
    """Plain values that all modules of a class share, of classes that are not torch's."""
    for base in {base: None for kind in kinds for base in kind.__mro__}:
        if issubclass(base, nn.Module) and not base.__module__.startswith("torch."):
            for name, value in vars(base).items():
                if not name.startswith("__") and isinstance(value, _PLAIN):
                    yield from (f"{base.__qualname__}.{name} = {value!r}", _END)


def _written(facts: _Facts) -> State:
    text = "\n".join(line.strip() for line in " ".join(map(str, facts.words)).split(_END))
    return State(text, hashlib.sha256(text.encode()).hexdigest(), _modes(facts))


def _modes(facts: _Facts) -> tuple[str, ...]:
    training = "".join("t" if each else "e" for each in facts.training)
    words = {"t" * len(training): "train", "e" * len(training): "eval"}
    # No word but a tensor's is a dtype, and its device follows.
    pairs = {pair for pair in pairwise(facts.words) if isinstance(pair[0], torch.dtype)}
    kinds = sorted(f"{dtype} {device}" for dtype, device in pairs)
    return f"mode: {words.get(training, training)}", f"parameters and buffers: {kinds}"
