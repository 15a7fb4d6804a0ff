"""The model that a command is about, and an example call of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast, get_args, get_type_hints

import torch
from torch import Tensor, nn

from sp.cli.reference import facts_of, find, told, wrong
from sp.errors import InputError

MOST_PARAMETERS = 500_000_000
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """args, kwargs: of a call with the batch and the length that were asked for, or of the reference's own."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Wish:
    """What the command line says of a model; a rank in another process makes the same from it.

    meta: without memory for parameters, for commands that compute nothing."""

    reference: str
    settings: tuple[tuple[str, Any], ...]
    batch: int
    length: int
    meta: bool

    def load(self) -> Subject:
        """The model with random parameters, the same in every process.

        InputError for a reference that leads nowhere, and where nobody can guess how the model is called."""
        torch.manual_seed(0)
        with torch.device("meta") if self.meta else nullcontext():
            made = _make(self.reference, dict(self.settings))
            model, *call = (made or (None,)) if isinstance(made, tuple) else (made,)
            if not isinstance(model, nn.Module):
                raise wrong(self.reference, f"is a {type(model).__name__}, no nn.Module and no maker of one")
            return self._brought(model, call) if call else Subject(model, *self._guess(model))

    def load_small(self) -> Subject:
        """As `load`, for commands that compute: InputError for a model that would not fit into a machine's memory."""
        count = sum(each.numel() for each in replace(self, meta=True).load().model.parameters())
        if count > MOST_PARAMETERS:
            raise InputError(
                f"{self.reference} has {count:,} parameters, and the model is run on this machine's CPU",
                needed=f"at most {MOST_PARAMETERS:,}",
                remedy="make it smaller with --set, as in --set num_hidden_layers=2 --set hidden_size=64",
            )
        return self.load()

    def _brought(self, model: nn.Module, call: list[Any]) -> Subject:
        """With the reference's own call: args, or args and kwargs."""
        args, kwargs, *others = *call, *(() if len(call) > 1 else ({},))
        if others or not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
            kinds = ", ".join(type(each).__name__ for each in call)
            raise wrong(self.reference, f"brings ({kinds}) with the model, not (args, kwargs): a tuple and a dict")
        return Subject(model, tuple(cast(tuple[Any, ...], args)), dict(cast(Settings, kwargs)))

    def _guess(self, model: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Token ids for the first parameter of forward, the same as labels where it takes them."""
        names = list(inspect.signature(model.forward).parameters)
        size = getattr(getattr(model, "config", None), "vocab_size", None)
        if not names or not isinstance(size, int):
            raise InputError(
                f"how {type(model).__name__} is called is not known: it has no config.vocab_size",
                remedy="let the reference return (model, args, kwargs)",
            )
        ids = self._ids(size)
        return (), {names[0]: ids, **({"labels": ids.clone()} if "labels" in names else {})}

    def _ids(self, size: int) -> Tensor:
        shape = (self.batch, self.length)
        return torch.zeros(shape, dtype=torch.int64) if self.meta else torch.randint(size, shape)


def _make(reference: str, settings: dict[str, Any]) -> Any:
    if reference.startswith("hf:"):
        return _transformers(reference.removeprefix("hf:"), settings)
    if reference.endswith(".json"):
        facts = _inert(facts_of(reference))
        return _transformers(str(facts.pop("model_type", "")), settings, facts)
    target = find(reference)
    if isinstance(target, nn.Module | tuple):
        return target
    if not callable(target):
        raise wrong(reference, f"is a {type(target).__name__}, no nn.Module and no maker of one")
    return _call(reference, target, settings)


def _transformers(kind: str, settings: Settings, facts: Settings | None = None) -> nn.Module:
    """facts: of a configuration in a file, which may hold what other versions of transformers know."""
    try:
        from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
    except ImportError:
        raise wrong(f"hf:{kind}", "needs the package transformers") from None
    try:
        known = AutoConfig.for_model(kind)
    except ValueError:
        raise wrong(f"hf:{kind}", "is no model type of transformers") from None
    unknown = [name for name in settings if not hasattr(known, name)]
    if unknown:  # transformers would keep them and use none
        raise wrong(f"hf:{kind}", f"cannot be configured: it has no {', '.join(unknown)}")
    with told(f"hf:{kind}", "cannot be made"):
        config = AutoConfig.for_model(kind, **{**(facts or {}), **settings})
        causal = type(config) in AutoModelForCausalLM._model_mapping
        return (AutoModelForCausalLM if causal else AutoModel).from_config(config, trust_remote_code=False)


def _inert(facts: Settings) -> dict[str, Any]:
    """A configuration as numbers and words: without what would have transformers fetch code that others wrote, classes
    of a repository and kernels from a hub."""
    kept = {name: each for name, each in facts.items() if name != "auto_map" and "implementation" not in name}
    return {name: _inert(cast(Settings, each)) if isinstance(each, dict) else each for name, each in kept.items()}


def _call(reference: str, target: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """What `target` makes: settings are its own parameters, or those of the configuration that it takes."""
    parameters = inspect.signature(target).parameters
    if set(settings) <= set(parameters):
        needed = [name for name, each in parameters.items() if each.default is each.empty and name not in settings]
        if not [name for name in needed if parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]:
            with told(reference, "cannot be made"):
                return target(**settings)
    hints = get_type_hints(target.__init__ if isinstance(target, type) else target)
    kinds = [kind for name in parameters for kind in get_args(hints.get(name)) or [hints.get(name)]]
    kind = next((kind for kind in kinds if isinstance(kind, type) and kind is not type(None)), None)
    if kind is None:
        raise wrong(reference, f"takes {list(parameters)}, not nothing, settings or a configuration")
    with told(reference, "cannot be made"):
        try:
            return target(kind(**settings))
        except TypeError as error:
            raise wrong(reference, f"cannot be configured: {error}") from error
