"""The value that an op in place leaves in its operand, said by an op that returns it.

add_(x, y)      →  add(x, y)             in the dtype of x
fill_(x, 2)     →  zeros_like(x) + 2     x keeps its shape, on every rank its own
copy_(x, y)     →  y                     in the dtype and shape of x
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from sp.passes.fxtools import op_name, shape, tensor
from sp.passes.sizes import Sizes

aten = torch.ops.aten
OUT_OF_PLACE = "write it out of place (x = x + y for x += y, torch.where for x[...] = y)"
# Where the functional form has another name than the op without its underscore.
_NAMES: Mapping[str, str] = {"normal_": "normal_functional"}


class RefusedChangeError(Exception):
    """A change in place that has no functional form, or that nobody may make."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


@dataclass(frozen=True)
class Forms:
    """Makes nodes by `emit(op, args, kwargs)`.  read: what stands for an operand now."""

    emit: Callable[..., fx.Node]
    read: Callable[[fx.Node], fx.Node]
    sizes: Sizes

    def value(self, node: fx.Node, target: fx.Node) -> tuple[fx.Node, fx.Node | None]:
        """What `target` is after `node` has changed it; and the number that fills it, if it is one.

        Raises RefusedChangeError."""
        name, (_, *others) = op_name(node).removeprefix("aten."), map_arg(node.args, self.read)
        if name in ("fill_", "zero_"):
            return self._filled(others[0] if others else 0, target)
        if name == "copy_":
            return self._copied(cast(fx.Node, others[0]), target), None
        functional = getattr(aten, _NAMES.get(name, name[:-1]), None)
        overload = getattr(functional, cast(Any, node.target)._overloadname, None)
        if overload is None:
            raise RefusedChangeError("it changes its operand in place and has no other form", OUT_OF_PLACE)
        value = self.emit(overload, (target, *others), map_arg(node.kwargs, self.read))
        if tensor(value) is None or shape(value) != shape(target):
            raise RefusedChangeError("it changes the shape of its operand in place", OUT_OF_PLACE)
        return self._in_dtype(value, target.meta["val"].dtype), None

    def _filled(self, number: object, target: fx.Node) -> tuple[fx.Node, fx.Node]:
        dtype, device = target.meta["val"].dtype, target.meta["val"].device
        if isinstance(number, fx.Node) and tensor(number) is not None:
            scalar = self._in_dtype(number, dtype)
        else:
            scalar = self.emit(aten.full.default, ([], number), {"dtype": dtype, "device": device})
        zeros = self.emit(aten.zeros_like.default, (target,), {"pin_memory": False})
        joined = aten.logical_or.default if dtype == torch.bool else aten.add.Tensor
        return self.emit(joined, (zeros, scalar)), scalar

    def _copied(self, source: fx.Node, target: fx.Node) -> fx.Node:
        value, like = source, target.meta["val"]
        if source.meta["val"].device != like.device:
            value = self.emit(aten.to.device, (value, like.device, like.dtype))
        value = self._in_dtype(value, like.dtype)
        if shape(value) == shape(target):
            return value
        return self.emit(aten.expand.default, (value, [self.sizes.node(size) for size in shape(target)]))

    def _in_dtype(self, value: fx.Node, dtype: torch.dtype) -> fx.Node:
        return value if value.meta["val"].dtype == dtype else self.emit(aten.to.dtype, (value, dtype))
