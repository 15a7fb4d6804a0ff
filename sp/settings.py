"""What a plain value says of itself, as text, for as long as it stays what it is: two texts differ if `forward` might
read something else.

    3, "gelu", torch.float16, Mode.FAST        themselves
    [0.5, {"a": 1}], Settings(window=4)        what they hold: containers, dataclasses, namespaces, configs
    F.gelu, lambda x: gain * x                 where they are written, and what they close over
    a tensor inside of those                   which one it is
    anything else                              no more than its kind
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
from collections.abc import Callable, Collection, Mapping, Set
from enum import Enum
from functools import lru_cache, partial
from numbers import Number
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

_PLAIN = (Number, str, bytes, Enum, type(None), torch.dtype, torch.device)
_EXACT = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device})
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_NAMESPACES = (SimpleNamespace, argparse.Namespace)
# Attributes that hold what a model was made by, of whatever class.
_NAMES = frozenset({"config", "cfg", "args", "params", "hparams", "opts", "options", "settings"})
# What `save_pretrained` writes into a config, on the one rank that saves: the class of the model, and its dtype, which
# stands with the parameters.
_WRITTEN_BY_SAVING = frozenset({"architectures", "dtype", "torch_dtype"})
_LONGEST = 64  # of containers: longer ones are data (a vocabulary), which nobody changes
_DEEPEST = 4


def shown(value: object, depth: int = _DEEPEST) -> object:
    """Plain values as they are; of others no more than their kind."""
    if type(value) in _EXACT or isinstance(value, _PLAIN):  # the first is nearly all, and the second slow
        return repr(value)
    if isinstance(value, Tensor):
        return (*like(value), value.requires_grad, *(() if depth == _DEEPEST else (id(value),)))
    if not depth:
        return type(value).__qualname__
    if isinstance(value, (*_FUNCTIONS, partial)):
        return called(value, depth)
    if isinstance(value, Collection) and not isinstance(value, range) and len(value) <= _LONGEST:
        return _contents(value, depth - 1)
    if dataclasses.is_dataclass(value) or isinstance(value, _NAMESPACES):
        return held(value, depth - 1)
    return type(value).__qualname__


def held(value: object, depth: int = _DEEPEST - 1) -> list[tuple[str, object]]:
    """The attributes of an object that is there for them; fields in slots, too."""
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    pairs = {field.name: getattr(value, field.name, None) for field in fields} | getattr(value, "__dict__", {})
    return [(name, settings(name, each, depth)) for name, each in pairs.items() if name not in _WRITTEN_BY_SAVING]


def settings(name: str, value: object, depth: int = _DEEPEST) -> object:
    """What stands under this name: an object too, if it is called a config and the like."""
    if depth and is_settings(name, value):
        return type(value).__qualname__, held(value, depth - 1)
    return shown(value, depth)


def is_settings(name: str, value: object) -> bool:
    if type(value) in _EXACT or not (name in _NAMES or name.endswith("_config")):
        return False
    return hasattr(value, "__dict__") and not isinstance(value, (Collection, type, *_FUNCTIONS))


def like(value: Tensor) -> tuple[object, ...]:
    return value.dtype, value.device, tuple(value.shape)


def called(function: Callable[..., Any] | object, depth: int = 1) -> object:
    """Its name, what it does, and what it closes over or is bound to: two lambdas have one name."""
    if isinstance(function, partial):
        applied = cast("partial[Any]", function)
        return called(applied.func, depth), _contents(applied.args, depth - 1), _contents(applied.keywords, depth - 1)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    code = getattr(function, "__code__", None)
    if code is None:
        return name
    cells, defaults = getattr(function, "__closure__", None) or (), getattr(function, "__defaults__", None) or ()
    return name, _digest(code), [_shown_cell(cell, depth - 1) for cell in cells], _contents(defaults, depth - 1)


@lru_cache(maxsize=4096)
def _digest(code: CodeType) -> str:
    """Of what it does, wherever the file is: the same on all ranks."""
    constants = [_digest(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    text = f"{code.co_code!r} {code.co_names} {constants} {code.co_firstlineno}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _shown_cell(cell: Any, depth: int) -> object:
    try:
        return shown(cell.cell_contents, depth)
    except ValueError:  # of a name that has no value yet
        return ""


def _contents(value: Collection[object], depth: int) -> object:
    if depth < 0:
        return len(value)
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value).items()
        return [(shown(key, depth), settings(str(key), each, depth)) for key, each in items]
    inside = [shown(each, depth) for each in value]
    return sorted(map(str, inside)) if isinstance(value, Set) else inside
