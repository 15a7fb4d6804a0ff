"""What people hand to `parallelize` and its like by mistake, named before anything is captured.

parallelize(MyModel)     →     the model is the class MyModel; remedy: make one: MyModel(...)
inspect(model, ids)      →     args is one tensor;             remedy: put it into a tuple: (ids,)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from sp.errors import InputError, StrategyError
from sp.module import ParallelModule


def check_asked(model: object, args: object, kwargs: object) -> None:
    """StrategyError unless `model` is a module, and a plain one; InputError unless these are a call's arguments."""
    _check_model(model)
    _check_args(() if args is None else args, {} if kwargs is None else kwargs)


def _check_model(model: object) -> None:
    if isinstance(model, ParallelModule):
        raise StrategyError("the model is parallelized already", remedy="pass the plain model, `pmodel.plain`")
    if isinstance(model, type):
        raise StrategyError(
            f"the model is the class {model.__name__}", needed="an nn.Module", remedy=f"make one: {model.__name__}(…)"
        )
    if not isinstance(model, nn.Module):
        raise StrategyError(
            f"the model is a {type(model).__name__}",
            needed="an nn.Module",
            remedy="a function becomes one as the forward of a module that owns its parameters",
        )


def _check_args(args: object, kwargs: object) -> None:
    if isinstance(args, torch.Tensor):  # a sequence too: of its rows, which nobody means
        raise InputError("args is one tensor", needed="a tuple of arguments", remedy="put it into a tuple: (ids,)")
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise InputError(f"args is a {type(args).__name__}", needed="a tuple; what has a name goes into kwargs")
    if not isinstance(kwargs, Mapping):
        raise InputError(f"kwargs is a {type(kwargs).__name__}", needed="a dict from name to argument")
