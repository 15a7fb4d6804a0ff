"""One node of a graph as a person would write it: `linear(rms_norm, blocks.0.attention.q.weight)`."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import sympy
import torch
from torch import fx

from sp.passes.fxtools import expression, op_name
from sp.program import Program
from sp.show.naming import Naming
from sp.show.words import dtype_name

_END = torch.iinfo(torch.int64).max
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv)
_IDLE = {"pin_memory": (None, False), "layout": (None, torch.strided)}


class Expressions:
    """Writes the nodes of one program.  Parameters stand as their path, sizes read from inputs as what they are.

    also: other nodes that need no line of their own, and what stands in their place."""

    def __init__(self, program: Program, naming: Naming, also: Mapping[fx.Node, str] | None = None) -> None:
        self.naming = naming
        self._inline: dict[fx.Node, str] = {**_parameters(program.graph), **(also or {})}
        self._inline |= {node: naming.size(size) for node, size in _sizes(program).items()}

    def is_inline(self, node: fx.Node) -> bool:
        """Whether a node has no line of its own."""
        return node in self._inline

    def call(self, node: fx.Node) -> str:
        """The op and its arguments; those that only repeat a default are left out."""
        if node.target is operator.getitem:
            return "{}[{}]".format(*(self.argument(argument) for argument in node.args))
        defaults = _defaults(node)
        args = list(node.args)
        names = list(defaults)[: len(args)]
        while args and names and not isinstance(args[-1], fx.Node) and args[-1] == defaults[names[-1]]:
            args.pop()
            names.pop()
        parts = [self.argument(argument) for argument in args]
        for name, value in node.kwargs.items():
            if value not in _IDLE.get(name, (defaults.get(name, ...),)):
                parts.append(f"{name}={self.argument(value)}")
        return f"{op_name(node).removeprefix('aten.')}({', '.join(parts)})"

    def argument(self, value: object) -> str:
        if isinstance(value, fx.Node):
            return self._inline.get(value, value.name)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self.argument(part) for part in value)}]"
        if isinstance(value, torch.dtype):
            return dtype_name(value)
        if isinstance(value, float):
            return f"{value:.6g}"
        if isinstance(value, str) and (not value or " -> " in value):
            return repr(value)  # nothing, or a score: words with commas of their own
        return "end" if value == _END else str(value).removeprefix("torch.")


def _parameters(graph: fx.Graph) -> dict[fx.Node, str]:
    return {node: str(node.target).removeprefix("model.") for node in graph.find_nodes(op="get_attr")}


def _sizes(program: Program) -> dict[fx.Node, sympy.Expr]:
    """Nodes that compute a global size from the inputs.  A size read from a shard is local, and keeps its line."""
    sizes: dict[fx.Node, sympy.Expr] = {}
    local = {port.name for port in program.inputs if port.local}
    for node in program.graph.nodes:
        if op_name(node) == "aten.sym_size":
            source = node.args[0]
            if isinstance(source, fx.Node) and source.op == "placeholder" and source.target not in local:
                sizes[node] = expression(node.meta["val"])
        elif node.target in _ARITHMETIC and all(operand in sizes for operand in node.all_input_nodes):
            operands = [sizes[part] if isinstance(part, fx.Node) else part for part in node.args]
            sizes[node] = expression(node.target(*operands))
    return sizes


def _defaults(node: fx.Node) -> Mapping[str, object]:
    """Argument name → default value; `...` where there is none."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    arguments = node.target._schema.arguments
    return {a.name: a.default_value if a.has_default_value() else ... for a in arguments}
