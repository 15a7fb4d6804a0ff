"""What a graph takes for granted of its model, as text.  Where that changes, the model is captured anew.

    model.eval(), model.float()                         modes, dtypes, devices
    model.head.weight = nn.Parameter(…)                 which tensors there are, of what shapes, which are the same one
    model.dropout.p = 0.2, block.window = 128           plain values that `forward` may read, of its class too,
    model.config.window = 64                            and of dataclasses, namespaces and configs, see `settings`
    model.blocks[3] = other, block.register_forward_hook(…)
    fully_shard(model)                                  who puts parameters in place
    torch.set_default_dtype(torch.float64)              what tensors are made of that `forward` makes

What tensors contain is not in it, nor whether they train: a graph reads that when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import nn

from sp.fsdp import is_fsdps
from sp.settings import called, held, is_settings, like, shown

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, complex, str, type(None))


def model_state(model: nn.Module) -> str:
    """The same on all ranks that hold the same model."""
    numbers, configs, known = dict[int, int](), set[int](), {id(model)}
    modules, lines = [("", model)], [f"defaults: {torch.get_default_dtype()} {torch.get_default_device()}"]
    for path, module in modules:  # which grows
        for name, child in module._modules.items():
            if child is not None and id(child) not in known:
                known.add(id(child))
                modules.append((f"{path}{name}.", child))
        numbered = [(name, _number(child, numbers)) for name, child in module._modules.items()]
        own = _tensors(module, numbers), _hooks(module)
        lines.append(f"{path}: {_kind(module)} {module.training} {own} {numbered}")
        lines += (f"{path}{name} = {value}" for name, value in _values(module, configs))
    lines += (line for kind in {type(module): None for _, module in modules} for line in _of_class(kind))
    return "\n".join(lines)


def difference(before: str, now: str) -> str:
    """A line of one state that the other has not."""
    old = set(before.splitlines())
    return next((line for line in now.splitlines() if line not in old), "something that is gone")[:200]


def _kind(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__} {called(type(module).forward)}"


def _number(thing: object, numbers: dict[int, int]) -> int:
    """The same for the same thing: two names of one parameter are told from two parameters."""
    return numbers.setdefault(id(thing), len(numbers))


def _tensors(module: nn.Module, numbers: dict[int, int]) -> list[object]:
    """Parameters count as trained in any case: they are frozen and thawed without a new graph."""
    parameters = ((name, value, False) for name, value in module._parameters.items())
    buffers = ((name, value, value is not None and value.requires_grad) for name, value in module._buffers.items())
    tensors = chain(parameters, buffers)
    return [
        (name, value if value is None else (_number(value, numbers), *like(value), its)) for name, value, its in tensors
    ]


def _hooks(module: nn.Module) -> list[object]:
    """FSDP's by one word: it adds and removes some of them as it likes."""
    registries = {"before": module._forward_pre_hooks, "after": module._forward_hooks}
    registries |= {"backward": module._backward_hooks, "before backward": module._backward_pre_hooks}
    found = [(when, hook) for when, hooks in registries.items() for hook in hooks.values()]
    return ["fully_shard" if is_fsdps(hook) else (when, called(hook)) for when, hook in found]


def _values(module: nn.Module, configs: set[int]) -> Iterator[tuple[str, object]]:
    for name, value in vars(module).items():
        if name in _OF_EVERY_MODULE:
            continue
        if is_settings(name, value):  # many modules share one
            if id(value) not in configs:
                configs.add(id(value))
                yield from ((f"{name}.{key}", each) for key, each in held(value))
        else:
            yield name, shown(value)


def _of_class(kind: type) -> Iterator[str]:
    """Plain values that all modules of a class share, of classes that are not torch's."""
    for base in kind.__mro__:
        if issubclass(base, nn.Module) and not base.__module__.startswith("torch."):
            values = ((name, value) for name, value in vars(base).items() if not name.startswith("__"))
            yield from (
                f"{base.__qualname__}.{name} = {value!r}" for name, value in values if isinstance(value, _PLAIN)
            )
