"""One call of a model, taken apart: the tensors, which become inputs, and everything else, which is baked in.

model(ids, labels=ids, use_cache=False)  →  tensors (ids, labels) · names (input_ids, labels) · constants {…}
LMOutput(logits, loss)                   →  tensors (logits, loss) · names (logits, loss)
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils import _pytree as pytree

from sp.caches import Form, Kept, caches_in, closed, opened, parts, returns_its_cache
from sp.errors import InputError, UnsupportedModelError
from sp.program import LENGTH_CARRIER, NOISE_SEED

# Names of the generated code's own, and of inputs that sp adds: an argument called so is `torch_` there.
_TAKEN = frozenset({"torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree", LENGTH_CARRIER, NOISE_SEED})
_CONSTANTS = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Call:
    """The structure of one call: everything that a capture depends on besides the tensors' contents and lengths.

    `constants[i]` is None where leaf i is a tensor, otherwise the leaf in a one-element tuple.
    kept: for each tensor, whether it is part of a cache.
    """

    spec: pytree.TreeSpec
    constants: tuple[tuple[object] | None, ...]
    names: tuple[str, ...]
    added: tuple[str, ...] = ()
    kept: tuple[Form, ...] = ()

    @staticmethod
    def of(model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Call, list[torch.Tensor]]:
        """Take a call apart; InputError names an argument that is neither tensor nor constant."""
        parameters = inspect.signature(model.forward).parameters
        given, added = _with_settled_cache(model, parameters, args, kwargs)
        whole = opened((tuple(args), given))
        paths, spec = pytree.tree_flatten_with_path(whole)
        leaves = [leaf for _, leaf in paths]
        names = _unique((_argument_name(path, parameters) for path, _ in paths), _TAKEN)
        for name, leaf in zip(names, leaves, strict=True):
            if not isinstance(leaf, (torch.Tensor, *_CONSTANTS)):
                raise InputError(
                    f"argument {name!r} holds a {type(leaf).__name__}",
                    needed="tensors, numbers, strings, or containers of them that torch's pytree knows",
                    remedy="make a tensor of it, register its class with torch.utils._pytree, or do not pass it",
                )
            if isinstance(leaf, torch.Tensor) and (unusual := _unusual(leaf)):
                raise InputError(f"argument {name!r} is a {unusual} tensor", needed="a dense one")
        constants = tuple(None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        tensor_names = (name for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, torch.Tensor))
        pairs = zip(parts(whole), leaves, strict=True)
        kept: tuple[Form, ...] = tuple(_form(cache) for (_, cache), leaf in pairs if isinstance(leaf, torch.Tensor))
        return Call(spec, constants, tuple(tensor_names), added, kept), tensors

    def lines(self) -> list[str]:
        """All of it as text."""
        given = ["a tensor" if constant is None else repr(constant[0]) for constant in self.constants]
        return [f"arguments: {given}", f"structure: {self.spec}", f"tensors: {self.names} {self.added} {self.kept}"]

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """The original `(args, kwargs)` with `tensors` in the tensors' places."""
        return closed(pytree.tree_unflatten(_filled(self.constants, tensors), self.spec))


@dataclass
class Outputs:
    """How the model's own output is put together again, recorded while it is traced.

    kept: for each tensor, the name of the cache that it is part of, "" if of none.
    grows: whether the one cache in it is the one that was passed, with new tokens."""

    spec: pytree.TreeSpec | None = None
    constants: list[tuple[object] | None] = field(default_factory=list[tuple[object] | None])
    names: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])
    grows: bool = False

    def flatten(self, output: object, given: object = None) -> tuple[torch.Tensor, ...]:
        """The tensors of an output; UnsupportedModelError names what is neither tensor nor constant.

        given: the arguments of the call."""
        self.grows = returns_its_cache(given, output)
        output = opened(output)
        try:
            paths, self.spec = pytree.tree_flatten_with_path(output)
        except ValueError:  # a registered class that does not say how its parts are called
            leaves, self.spec = pytree.tree_flatten(output)
            paths = [((pytree.SequenceKey(number),), leaf) for number, leaf in enumerate(leaves)]
        for path, leaf in paths:
            if not isinstance(leaf, (torch.Tensor, bool, int, float, str, type(None))):
                raise UnsupportedModelError(
                    f"the model returns a {type(leaf).__name__} as {_output_name(path)!r}",
                    needed="tensors and constants in containers that torch's pytree knows",
                    remedy="register the class with torch.utils._pytree, or leave it out (use_cache=False for caches)",
                )
        self.constants = [None if isinstance(leaf, torch.Tensor) else (leaf,) for _, leaf in paths]
        self.names = _unique(_output_name(path) for path, leaf in paths if isinstance(leaf, torch.Tensor))
        pairs = zip(self._parts(output, len(paths)), paths, strict=True)
        self.kept = [name for name, (_, leaf) in pairs if isinstance(leaf, torch.Tensor)]
        return tuple(leaf for _, leaf in paths if isinstance(leaf, torch.Tensor))

    def without(self, dropped: Set[str]) -> Outputs:
        """The same with None in place of the tensors of these names."""
        if not dropped:
            return self
        names = iter(self.names)
        constants = [
            (None,) if constant is None and next(names) in dropped else constant for constant in self.constants
        ]
        pairs = [(name, kept) for name, kept in zip(self.names, self.kept, strict=True) if name not in dropped]
        kept = [kept for _, kept in pairs]
        return Outputs(self.spec, constants, [name for name, _ in pairs], kept, self.grows and any(kept))

    def _parts(self, output: object, count: int) -> list[str]:
        try:
            return [_output_name(path) if kept else "" for path, kept in parts(output)]
        except ValueError:  # as above; such classes hold no cache
            return [""] * count

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> object:
        """The output with a `Kept` for each cache."""
        assert self.spec is not None, "flatten has run"
        return pytree.tree_unflatten(_filled(self.constants, tensors), self.spec)


def _unusual(tensor: torch.Tensor) -> str:
    """What sets it apart from an array of numbers, if anything does."""
    if torch.nn.parameter.is_lazy(tensor):
        return "uninitialized"
    if tensor.is_nested or tensor.is_quantized:
        return "nested" if tensor.is_nested else "quantized"
    return "" if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.")


def _filled(constants: Sequence[tuple[object] | None], tensors: Sequence[torch.Tensor]) -> list[object]:
    supply = iter(tensors)
    return [next(supply) if constant is None else constant[0] for constant in constants]


def _form(cache: Kept | None) -> Form:
    return "" if cache is None else ("local" if cache.is_local else "global")


def _with_settled_cache(
    model: nn.Module, parameters: Mapping[str, inspect.Parameter], args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Say `use_cache=False` where the caller left it open, and where a cache is asked for but not passed, pass one.

    transformers' decoders otherwise return every layer's keys and values, which only generation reads.  A caller who
    asks for them is not overruled, but windowed layers of a cache that the model makes would drop tokens.  Nor may that
    word change what is computed: where positions restart, transformers looks for documents only without a cache."""
    if "use_cache" not in parameters or any(caches_in((args, kwargs))):
        return dict(kwargs), ()
    given, why = dict(zip(parameters, args, strict=False)) | dict(kwargs), "the caller asked for one"
    if "use_cache" not in given:
        if not _may_find_documents(model, given):
            return {**kwargs, "use_cache": False}, ("use_cache=False (the caller left it open)",)
        given["use_cache"], why = True, "the caller left use_cache open, without which position_ids mean something else"
    free = [name for name in CACHES if name in parameters and given.get(name) is None]
    if not given["use_cache"] or not free or not _is_of_transformers(model) or free[0] in [*parameters][: len(args)]:
        return dict(kwargs), ()
    return {**kwargs, free[0]: Kept()}, (f"{free[0]}=DynamicCache() ({why})",)


def _may_find_documents(model: nn.Module, given: Mapping[str, object]) -> bool:
    """Whether the model keeps a cache by itself, and so takes positions as they are."""
    keeps = bool(getattr(getattr(model, "config", None), "use_cache", False))
    return keeps and given.get("position_ids") is not None and given.get("attention_mask") is None


CACHES = ("cache", "past_key_values")  # what models call it, the newer name first


def _is_of_transformers(model: nn.Module) -> bool:
    return any(base.__module__.startswith("transformers.") for base in type(model).__mro__)


def _argument_name(path: Sequence[object], parameters: Mapping[str, inspect.Parameter]) -> str:
    """`labels`, or `states_0` for a leaf inside a container or behind `*states`."""
    side, first, *rest = _keys(path)
    if side == "1":
        return "_".join([first, *rest])
    named = [name for name, parameter in parameters.items() if parameter.kind in _BY_POSITION]
    position = int(first)
    if position < len(named):
        return "_".join([named[position], *rest])
    starred = [name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.VAR_POSITIONAL]
    return "_".join([starred[0] if starred else "argument", str(position - len(named)), *rest])


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _output_name(path: Sequence[object]) -> str:
    return "_".join(_keys(path)) or "output"


def _keys(path: Sequence[object]) -> list[str]:
    return [str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key)))) for key in path]


def _unique(names: Iterable[str], taken: Set[str] = frozenset()) -> list[str]:
    """Every name once.  They become names in generated Python code too: `my-key` is `my_key` there."""
    found: list[str] = []
    for name in names:
        name = plain = re.sub(r"\W", "_", name)
        if keyword.iskeyword(name) or name in taken:
            name = plain = f"{name}_"
        number = 0
        while name in found:
            number += 1
            name = f"{plain}_{number}"
        found.append(name)
    return found
