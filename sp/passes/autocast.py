"""Autocast: the casts that `torch.autocast` does while a model runs → lines of the graph.

    linear = aten.linear(x, weight)   x: float32, autocast to bfloat16
    →
    to     = aten.to(x, torch.bfloat16)
    to_1   = aten.to(weight, torch.bfloat16)
    linear = aten.linear(to, to_1)

Afterwards no op depends on the mode that it runs under: the graph must run without autocast, wherever passes move its
ops, whatever they make of them.  Which casts an op gets is asked of torch itself: the op runs on fake tensors, once
under autocast and once for each way of casting by hand, and both must reach the same kernels with the same dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sp.errors import Refusal
from sp.passes.fxtools import refusal, tensor, tensor_operands
from sp.passes.modes import is_quiet, modes_of, without_autocast
from sp.program import Program

aten = torch.ops.aten
_FULL = torch.float32
Autocasts = tuple[tuple[str, torch.dtype], ...]


@dataclass(frozen=True)
class Casts:
    """operands: the dtype of every floating operand (but float64, which autocast leaves alone), None for its own.
    argument: the op computes in float32 by its own `dtype` argument."""

    operands: torch.dtype | None = None
    argument: bool = False


@dataclass(frozen=True)
class Autocast:
    name: str = "autocast"

    def run(self, program: Program) -> Program:
        caster = _Caster({}, {})
        nodes = [node for node in program.graph.nodes if _may_cast(node)]
        refused = {node.name: why for node in nodes if (why := caster.visit(node)) is not None}
        return program.refuse(refused).note(self.name, f"{caster.count} casts of autocast written out")

    def check(self, program: Program) -> None:
        del program  # `visit` compares


def _may_cast(node: fx.Node) -> bool:
    modes = modes_of(node)
    is_op = isinstance(node.target, torch._ops.OpOverload)
    return is_op and modes is not None and bool(modes.autocast) and any(map(_floats, tensor_operands(node)))


def _floats(operand: fx.Node) -> bool:
    value = tensor(operand)
    return value is not None and value.is_floating_point() and value.dtype != torch.float64


@dataclass
class _Caster:
    """known: the casts of each op that was asked about.  made: casts of parameters are made once, as autocast
    does; but one for use under `no_grad` lets no gradient through."""

    known: dict[str, Casts | None]
    made: dict[tuple[fx.Node, torch.dtype, bool], fx.Node]
    count: int = 0

    def visit(self, node: fx.Node) -> Refusal | None:
        modes = modes_of(node)
        assert modes is not None
        question = f"{node.target} {_pattern(node)} {modes.autocast}"
        if question not in self.known:
            self.known[question] = find_casts(node, modes.autocast)
        casts = self.known[question]
        if casts is None:
            remedy = "call it under torch.autocast(device_type, enabled=False), with the casts that you want"
            return refusal(node, f"no cast of its operands has the effect of autocast to {modes.autocast}", remedy)
        if casts.operands is not None:
            for operand in filter(_floats, tensor_operands(node)):
                node.replace_input_with(operand, self._cast(operand, casts.operands, node))
        if casts.argument:
            node.kwargs = {**node.kwargs, "dtype": _FULL}
        return None

    def _cast(self, operand: fx.Node, dtype: torch.dtype, node: fx.Node) -> fx.Node:
        value = operand.meta["val"]
        if value.dtype == dtype:
            return operand
        key = (operand, dtype, is_quiet(node))
        made = self.made.get(key) if operand.op == "get_attr" else None
        if made is None:
            with node.graph.inserting_before(node):
                made = node.graph.call_function(aten.to.dtype, (operand, dtype))
            made.meta = {**node.meta, "val": value.to(dtype)}
            self.made[key] = made
            self.count += 1
        return made


def find_casts(node: fx.Node, autocast: Autocasts) -> Casts | None:
    """What autocast does to this op, None if no cast of its operands comes to the same."""
    right = _kernels(node, Casts(), autocast)
    dtypes = {operand.meta["val"].dtype for operand in tensor_operands(node) if _floats(operand)}
    plain = not right.casts or (len(dtypes) == 1 and _kernels(node, Casts(), ()) == right)
    if plain:  # `to` casts, too, but not for autocast's sake
        return Casts()
    ways = [*(Casts(dtype) for _, dtype in autocast), Casts(_FULL), Casts(max(dtypes, key=_width))]
    schema: Any = cast(Any, node.target)._schema
    if any(argument.name == "dtype" for argument in schema.arguments) and node.kwargs.get("dtype") is None:
        ways.append(Casts(argument=True))
    if len(dtypes) > 1:
        ways.append(Casts())  # last: operands of mixed dtypes make torch log an error
    return next((way for way in ways if _kernels(node, way, ()).kernels == right.kernels), None)


def _width(dtype: torch.dtype) -> int:
    return dtype.itemsize


@dataclass(frozen=True)
class _Run:
    """What an op came down to: kernels with the dtypes of their operands, the casts between them."""

    kernels: list[str]
    casts: list[str]


class _Kernels(TorchDispatchMode):
    """Notes which ops run and on which dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = _Run([], [])

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace != "prim":  # questions about devices
            leaves = pytree.tree_leaves((args, kwargs))
            seen = [leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            noted = self.noted.casts if func is aten._to_copy.default else self.noted.kernels
            noted.append(f"{func} {seen}")
        return func(*args, **(kwargs or {}))


def _kernels(node: fx.Node, casts: Casts, autocast: Autocasts) -> _Run:
    """What an op comes down to, with operands cast by hand and under autocast; the result's dtype comes last."""
    with FakeTensorMode(), torch.no_grad(), without_autocast(), ExitStack() as stack:
        args, kwargs = map_arg((node.args, node.kwargs), _standing_in(casts))
        if casts.argument:
            kwargs = {**kwargs, "dtype": _FULL}
        for device, dtype in autocast:
            stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
        log = stack.enter_context(_Kernels())
        try:
            made = node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:  # these dtypes do not go together
            return _Run([type(error).__name__], [])
        dtypes = [leaf.dtype for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]
    log.noted.kernels.append(str(dtypes))
    return log.noted


def _standing_in(casts: Casts) -> Callable[[fx.Node], Any]:
    """For a node, a tensor (or number) of its shape at the traced sizes."""

    def stand_in(node: fx.Node) -> Any:
        value = tensor(node)
        if value is None:
            return pytree.tree_map(_hint, node.meta["val"])
        dtype = casts.operands if casts.operands is not None and _floats(node) else value.dtype
        return torch.empty([_hint(size) for size in value.shape], dtype=dtype, device=value.device)

    return stand_in


def _hint(value: Any) -> Any:
    """A symbolic number as it was when traced; 2 where that depended on contents."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint if value.node.has_hint() else 2
    return value


def _pattern(node: fx.Node) -> str:
    def words(operand: fx.Node) -> Any:
        value = tensor(operand)
        return "?" if value is None else f"{value.dtype} {value.device} {value.ndim}"

    return str(map_arg((node.args, node.kwargs), words))
