"""What a graph takes for granted of its model, as text.  Where that changes, the model is captured anew.

    model.eval(), model.float()                         modes, dtypes, devices
    model.head.weight = nn.Parameter(…)                 which tensors there are, of what shapes, which are the same one
    model.dropout.p = 0.2, block.window = 128           plain values that `forward` may read, those of `config` too
    model.blocks[3] = other, block.register_forward_hook(…)
    fully_shard(model)                                  who puts parameters in place

What tensors contain is not in it, nor whether they train: a graph reads that when it runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from sp.fsdp import is_fsdps

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
# What `save_pretrained` writes into a config, on the one rank that saves: the class of the model, and its dtype, which
# stands with the parameters.
_WRITTEN_BY_SAVING = frozenset({"architectures", "dtype", "torch_dtype"})
_LONGEST = 64  # of containers: longer ones are data (a vocabulary), which nobody changes


def model_state(model: nn.Module) -> str:
    """The same on all ranks that hold the same model."""
    numbers, configs, known = dict[int, int](), set[int](), {id(model)}
    modules, lines = [("", model)], list[str]()
    for path, module in modules:  # which grows
        for name, child in module._modules.items():
            if child is not None and id(child) not in known:
                known.add(id(child))
                modules.append((f"{path}{name}.", child))
        numbered = [(name, _number(child, numbers)) for name, child in module._modules.items()]
        held = _tensors(module, numbers), _hooks(module)
        lines.append(f"{path}: {_kind(module)} {module.training} {held} {numbered}")
        lines += (f"{path}{name} = {value}" for name, value in _values(module, configs))
    return "\n".join(lines)


def difference(before: str, now: str) -> str:
    """A line of one state that the other has not."""
    old = set(before.splitlines())
    return next((line for line in now.splitlines() if line not in old), "something that is gone")[:200]


def _kind(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__} {_called(type(module).forward)}"


def _number(thing: object, numbers: dict[int, int]) -> int:
    """The same for the same thing: two names of one parameter are told from two parameters."""
    return numbers.setdefault(id(thing), len(numbers))


def _tensors(module: nn.Module, numbers: dict[int, int]) -> list[object]:
    """Parameters count as trained in any case: they are frozen and thawed without a new graph."""
    parameters = ((name, value, False) for name, value in module._parameters.items())
    buffers = ((name, value, value is not None and value.requires_grad) for name, value in module._buffers.items())
    held = chain(parameters, buffers)
    return [
        (name, value if value is None else (_number(value, numbers), *_like(value), its)) for name, value, its in held
    ]


def _like(value: Tensor) -> tuple[object, ...]:
    return value.dtype, value.device, tuple(value.shape)


def _hooks(module: nn.Module) -> list[str]:
    """FSDP's by one word: it adds and removes some of them as it likes."""
    registries = {"before": module._forward_pre_hooks, "after": module._forward_hooks}
    registries |= {"backward": module._backward_hooks, "before backward": module._backward_pre_hooks}
    found = [(when, hook) for when, hooks in registries.items() for hook in hooks.values()]
    return ["fully_shard" if is_fsdps(hook) else f"{when} {_called(hook)}" for when, hook in found]


def _values(module: nn.Module, configs: set[int]) -> Iterator[tuple[str, object]]:
    for name, value in vars(module).items():
        if name in _OF_EVERY_MODULE:
            continue
        if name == "config" and hasattr(value, "__dict__"):  # many modules share one
            if id(value) not in configs:
                configs.add(id(value))
                read = ((key, each) for key, each in vars(value).items() if key not in _WRITTEN_BY_SAVING)
                yield from ((f"{name}.{key}", shown(each)) for key, each in read)
        else:
            yield name, shown(value)


def shown(value: object) -> object:
    """Plain values as they are; of others no more than their kind."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, _FUNCTIONS):
        return _called(value)
    if isinstance(value, Tensor):
        return *_like(value), value.requires_grad
    if isinstance(value, (tuple, list, set, frozenset, dict)) and len(value) <= _LONGEST:
        return _contents(cast(Any, value))
    return type(value).__qualname__


def _contents(held: Any) -> object:
    if isinstance(held, dict):
        return [(shown(key), shown(value)) for key, value in cast(Mapping[object, object], held).items()]
    found = [shown(value) for value in held]
    return sorted(map(str, found)) if isinstance(held, (set, frozenset)) else found


def _called(function: Callable[..., Any] | object) -> str:
    """Its name, and what it does: two lambdas have one name."""
    inner = function.__func__ if isinstance(function, MethodType) else function
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    if not isinstance(inner, FunctionType):
        return name
    cells = [shown(cell.cell_contents) if _is_filled(cell) else "" for cell in inner.__closure__ or ()]
    held = [each for each in (inner.__defaults__, cells) if each]
    return f"{name} {_code(inner.__code__)}{[shown(each) for each in held] or ''}"


def _is_filled(cell: CellType) -> bool:
    """Not that of a function which refers to itself: its contents are the function."""
    try:
        return not isinstance(cell.cell_contents, _FUNCTIONS)
    except ValueError:
        return False


@lru_cache(maxsize=4096)
def _code(code: CodeType) -> str:
    """Of what it does, wherever the file is: the same on all ranks."""
    constants = [_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    text = f"{code.co_code!r} {code.co_names} {constants} {code.co_firstlineno}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]
