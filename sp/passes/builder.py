"""Builder: new nodes that stand for an old one, with the shapes and source line that later passes read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

import sympy
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.fx.node import Argument, map_arg

from sp.passes.fxtools import tensor
from sp.passes.sizes import Sizes
from sp.program import Program


class Builder:
    """Calls made here stand before `origin` in the graph.  Each computes its fake result, as capture would have."""

    def __init__(self, origin: fx.Node, program: Program, meta: Mapping[str, Any] | None = None) -> None:
        """meta: of the node that new ones stand for, if that is not `origin`."""
        self.origin, self.program, self.meta = origin, program, origin.meta if meta is None else meta
        self.graph = origin.graph
        self.sizes = Sizes(program)
        self.shortest: dict[sympy.Basic, int] = {}

    def __call__(self, op: Callable[..., Any], *args: object, **kwargs: object) -> fx.Node:
        with self.graph.inserting_before(self.origin):
            node = self.graph.call_function(op, cast("tuple[Argument, ...]", args), cast("dict[str, Argument]", kwargs))
        node.meta = {**self.meta, "val": self._fake(node)}
        return node

    def size(self, size: sympy.Expr) -> fx.Node | int:
        """A size as an argument."""
        with self.graph.inserting_before(self.origin):
            return self.sizes.node(size)

    def need_more_than(self, number: int, length: sympy.Expr) -> bool:
        """Narrow the program to sequences for which `length` is more than `number`; False where that cannot be."""
        (symbol, *others) = self.program.symbols & length.free_symbols
        rest = length - symbol
        if others or not rest.is_Integer:
            return False
        self.shortest[symbol] = max(number + 1 - int(rest), self.shortest.get(symbol, 0))
        return True

    def positions(self, length: sympy.Expr, dim: int, ndim: int) -> fx.Node:
        """0 … length-1 along `dim` of `ndim`: int64, whole."""
        device = cast(torch.Tensor, tensor(self.origin.all_input_nodes[0])).device
        places = self(torch.ops.aten.arange.default, self.size(length), device=device, pin_memory=False)
        return self(torch.ops.aten.view.default, places, [-1 if at == dim else 1 for at in range(ndim)])

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """`node` in another dtype, itself if it has it."""
        fake = tensor(node)
        assert fake is not None
        return node if fake.dtype == dtype else self(torch.ops.aten.to.dtype, node, dtype)

    def _fake(self, node: fx.Node) -> Any:
        def value(operand: fx.Node) -> Any:
            return operand.meta["val"]

        target = cast("Callable[..., Any]", node.target)
        args, kwargs = map_arg(node.args, value), map_arg(node.kwargs, value)
        mode = detect_fake_mode([operand.meta.get("val") for operand in node.all_input_nodes])
        mode = mode or detect_fake_mode([one.meta.get("val") for one in self.graph.find_nodes(op="placeholder")])
        assert mode is not None, "captured graphs hold fake tensors"
        guards = mode.shape_env.suppress_guards() if mode.shape_env is not None else nullcontext()
        # A guard would fix a size for good; and in Python, torch's ops keep sizes symbolic that in C++ they do not.
        with mode, guards, enable_python_dispatcher(), torch.enable_grad():
            return target(*args, **kwargs)
