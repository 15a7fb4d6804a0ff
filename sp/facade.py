"""A module in the place of another: the same names, parameters and attributes, another forward.

model.encoder = Facade(model.encoder)
model.state_dict()               the keys that it had
model.encoder.layers[0].scale    what it was
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar, cast

import torch
from torch import nn

Function = TypeVar("Function", bound=Callable[..., Any])

# The dicts and sets themselves: what either side adds or replaces, both have.  Of hooks those of `state_dict` alone,
# which is `plain`'s; those of forward run around the call.
_SHARED = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def outside_of_graphs(run: Function) -> Function:
    """Under torch.compile of a module around, which compiles what is before and behind, `run` stays as it is."""
    return cast("Function", torch.compiler.disable(run))


class Facade(nn.Module):
    """Shares the parameters, buffers and submodules of `plain` under their own names, so that optimizers, checkpoints,
    tied weights and `.to()` see what they saw before, in the module itself and in one that holds it.

    Attributes that it lacks are those of `plain`, to read and to set.  `plain` is no submodule: names do not change."""

    plain: nn.Module

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.__dict__["plain"] = plain
        self.__dict__["training"] = plain.training
        for shared in _SHARED:
            self.__dict__[shared] = getattr(plain, shared)

    def train(self, mode: bool = True) -> Self:
        """As the module's own, which may keep some of its parts as they are."""
        self.plain.train(mode)
        self.__dict__["training"] = self.plain.training
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """`fn` sees the modules that it knows."""
        self.plain.apply(fn)
        return self

    def _get_name(self) -> str:
        """The module's own: transformers' Trainer goes by it where it decides whether labels have to be shifted."""
        return self.plain._get_name()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, key for key."""
        return self.plain.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.plain.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """What `load_state_dict` of a module around it calls: hooks and older versions are the module's business."""
        self.plain._load_from_state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """What `.to()` and its kin call, of a module around it too."""
        self.plain._apply(fn, recurse)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["plain"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ or hasattr(type(self), name) or not hasattr(self.__dict__.get("plain"), name):
            super().__setattr__(name, value)
        else:
            setattr(self.plain, name, value)
