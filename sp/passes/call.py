"""One call of a model, taken apart: the tensors, which become inputs, and everything else, which is baked in.

    model(ids, labels=ids, use_cache=False)  →  tensors (ids, labels) · names (input_ids, labels) · constants {…}
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils import _pytree as pytree

from sp.errors import InputError

_CONSTANTS = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Call:
    """The structure of one call: everything that a capture depends on besides the tensors' contents and lengths.

    `constants[i]` is None where leaf i is a tensor, otherwise the leaf in a one-element tuple.
    """

    spec: pytree.TreeSpec
    constants: tuple[tuple[object] | None, ...]
    names: tuple[str, ...]
    added: tuple[str, ...] = ()

    @staticmethod
    def of(model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Call, list[torch.Tensor]]:
        """Take a call apart; InputError names an argument that is neither tensor nor constant."""
        parameters = inspect.signature(model.forward).parameters
        given, added = _without_cache(parameters, args, kwargs)
        paths, spec = pytree.tree_flatten_with_path((tuple(args), given))
        leaves = [leaf for _, leaf in paths]
        names = [_name(path, list(parameters)) for path, _ in paths]
        for name, leaf in zip(names, leaves, strict=True):
            if not isinstance(leaf, (torch.Tensor, *_CONSTANTS)):
                raise InputError(
                    f"argument {name!r} holds a {type(leaf).__name__}",
                    needed="tensors, numbers, strings, or containers of them that torch's pytree knows",
                    remedy="register its class with torch.utils._pytree.register_pytree_node, or do not pass it",
                )
        constants = tuple(None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        tensor_names = (name for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, torch.Tensor))
        return Call(spec, constants, tuple(tensor_names), added), tensors

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """The original `(args, kwargs)` with `tensors` in the tensors' places."""
        supply = iter(tensors)
        leaves = [next(supply) if constant is None else constant[0] for constant in self.constants]
        return pytree.tree_unflatten(leaves, self.spec)


def _without_cache(
    parameters: Mapping[str, inspect.Parameter], args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Say `use_cache=False` where the caller left it open.

    transformers' decoders otherwise return every layer's keys and values, which only generation reads: they would have
    to be gathered from all ranks at each call.  A caller who asks for the cache is not overruled."""
    order = list(parameters)
    open_question = "use_cache" in parameters and "use_cache" not in kwargs and order.index("use_cache") >= len(args)
    if not open_question:
        return dict(kwargs), ()
    return {**kwargs, "use_cache": False}, ("use_cache=False (the caller left it open; sp keeps no key/value cache)",)


def _name(path: Sequence[object], parameters: list[str]) -> str:
    """`labels`, or `states_0` for a leaf inside a container."""
    keys = [str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key)))) for key in path]
    side, first, *rest = keys
    if side == "0":
        position = int(first)
        first = parameters[position] if position < len(parameters) else f"argument_{position}"
    return "_".join([first, *rest])
