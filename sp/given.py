"""What people give to the functions of `sp`: whether it is of a kind that can be, said where it is given.

An option of another kind would be carried to where it is first used: into another process, after minutes, or nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sp.errors import InputError, SpError, StrategyError
from sp.facade import Facade

_SHOWN = 60  # characters
_PLAIN = (bool, int, float, str, type(None), list, tuple, dict, torch.dtype)


def check_kind(
    name: str, value: object, kinds: tuple[type, ...], needed: str, error: type[SpError] = StrategyError
) -> None:
    """A bool is no number here, though Python takes it for one."""
    if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
        return
    raise _cannot_be(error, name, value, needed)


def _cannot_be(error: type[SpError], name: str, value: object, needed: str) -> SpError:
    text = repr(value) if isinstance(value, _PLAIN) and not _holds_tensors(value) else f"a {type(value).__name__}"
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    if error is InputError:
        return InputError(f"{name} cannot be {shown}", needed=needed)
    return StrategyError(f"{name} cannot be {shown}", needed=needed)


def _holds_tensors(value: object) -> bool:
    held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(isinstance(each, Tensor) for each in held)


def check_sequence_dim(dim: object) -> None:
    """A number for all inputs, or by name a number or two."""
    given = dim.items() if isinstance(dim, Mapping) else [("", dim)]
    for name, each in given:
        several = isinstance(each, Sequence) and not isinstance(each, str) and isinstance(dim, Mapping)
        numbers = [*cast("Sequence[object]", each)] if several else [each]
        if not isinstance(name, str) or not all(type(number) is int for number in numbers):
            needed = "a number, or one or two for each input by name, as {'input_ids': 1}"
            raise _cannot_be(StrategyError, "sequence_dim", dim, needed)


def check_call(args: object, kwargs: object, names: tuple[str, str] = ("args", "kwargs")) -> None:
    """Arguments of a model as a sequence and a mapping: one tensor would be taken for its rows."""
    if not isinstance(args, (Sequence, type(None))) or isinstance(args, str):
        raise _cannot_be(InputError, names[0], args, "a tuple of what the model is called with, as (ids,)")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)):
        raise _cannot_be(InputError, names[1], kwargs, "a dict by the names of arguments, as {'labels': ids}")


def check_settings(settings: object) -> None:
    """Those of compile: what torch.compile takes."""
    known = set(signature(torch.compile).parameters) - {"model"}
    if isinstance(settings, Mapping) and not set(settings) <= known:
        needed = f"options of torch.compile: {', '.join(sorted(known))}"
        raise _cannot_be(StrategyError, "compile", dict(settings), needed)


def check_model(model: object) -> None:
    """StrategyError for what is no model, or is one that something else runs."""
    if not isinstance(model, nn.Module):
        is_class = isinstance(model, type)
        raise StrategyError(
            f"the model is {f'the class {model.__name__}' if is_class else f'a {type(model).__name__}'}",
            needed="an nn.Module",
            remedy=f"make one: {model.__name__}(…)" if is_class else "a function becomes the forward of a module",
        )
    if isinstance(model, Facade):
        raise StrategyError("the model is parallelized already", remedy="pass the plain model, `pmodel.plain`")
    if inside := [name for name, module in model.named_modules() if isinstance(module, Facade)]:
        raise StrategyError(
            f"{inside[0]!r} of the model is parallelized already",
            needed="a plain model",
            remedy="parallelize the whole or a part of it, not both; call a model whose part is parallelized as it is",
        )
    if isinstance(model, _RUN_BY_OTHERS) or type(model).__name__ == "OptimizedModule":
        raise StrategyError(
            f"the model is in a {type(model).__name__}, which runs it",
            needed="the model itself",
            remedy="parallelize what is inside (model.module, model._orig_mod), then wrap the result; sp compiles too",
        )
    if getattr(model.forward, "__name__", "") == "_forward_unimplemented":
        raise StrategyError(
            f"{type(model).__name__} has no forward", remedy="parallelize_chain for a list of layers, or each of them"
        )
    _check_parts(model)
    if lazy := [name for name, value in model.named_parameters() if nn.parameter.is_lazy(value)]:
        raise StrategyError(f"the parameter {lazy[0]!r} has no shape yet", remedy="call the plain model once")


def _check_parts(model: nn.Module) -> None:
    """StrategyError for modules whose forward is not Python that could be traced, or is none of theirs."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise StrategyError(
                f"{name!r} of the model is a {type(module).__name__}, scripted or traced",
                needed="modules whose forward is Python",
                remedy="put the module in its place that it was made from; scripted functions may stay",
            )
        if isinstance(module, _RUN_BY_OTHERS):
            raise StrategyError(
                f"{name!r} of the model is a {type(module).__name__}, which runs that part of it",
                needed="the part itself",
                remedy="put what is inside (its .module) in its place; sp sums the gradients",
            )
        if type(module).__module__.startswith("torch.ao.nn.quantized"):
            raise StrategyError(
                f"{name!r} of the model is a quantized {type(module).__name__}",
                needed="weights that are tensors, and scales that do not depend on other tokens",
                remedy="parallelize the model that it was made from",
            )


_RUN_BY_OTHERS = (DataParallel, DistributedDataParallel, torch.jit.ScriptModule)
