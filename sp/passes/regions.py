"""Inline: the bodies of `no_grad` and `autocast` regions → ordinary lines of one graph.

    submod = get_attr(submod_1)                                  mul = aten.mul(x, 2)
    h      = wrap_with_set_grad_enabled(False, submod, x)    →   …
    item   = getitem(h, 0)

The ops keep the modes under which they were traced as a note on each (`modes_of`); `Autocast` and `Detach` act on it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import fx
from torch.fx.node import map_arg

from sp.errors import Refusal, UnsupportedModelError
from sp.passes.fxtools import attribute, inner_nodes, op_name, refusal, result
from sp.passes.modes import modes_of
from sp.program import Program

# Where the body stands among the arguments; its operands follow.
REGIONS: Mapping[str, int] = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}


@dataclass(frozen=True)
class Inline:
    name: str = "inline"

    def run(self, program: Program) -> Program:
        count = sum(op_name(each) in REGIONS for node in program.graph.nodes for each in (node, *inner_nodes(node)))
        if not count:
            return program.note(self.name, "no regions of no_grad or autocast")
        inliner = _Inliner(fx.Graph())
        inliner.graph.output(inliner.copy(program.graph, {}, grad=True))
        if inliner.refusals:
            raise UnsupportedModelError("torch.export lost track of a grad mode", refusals=inliner.refusals)
        module = fx.GraphModule(program.graph_module, inliner.graph)
        text = f"{count} region{'' if count == 1 else 's'} of no_grad or autocast inlined"
        return replace(program, graph_module=module).note(self.name, text)

    def check(self, program: Program) -> None:
        left = [node for node in program.graph.nodes if op_name(node) in REGIONS]
        if left:
            raise AssertionError(f"inline left {left}")


class _Inliner:
    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.refusals: list[Refusal] = []

    def copy(self, source: fx.Graph, known: dict[fx.Node, Any], grad: bool) -> Any:
        """Copy `source`, whose inputs are `known`; what it returns.  grad: the mode that the region around it sets."""
        for node in source.nodes:
            if node.op == "output":
                return map_arg(node.args[0], known.__getitem__)
            if node in known or (isinstance(attribute(node), fx.GraphModule) and _held_by_regions(node)):
                continue
            if op_name(node) in REGIONS:
                known[node] = self._region(node, known, grad)
            elif node.target is operator.getitem and isinstance(known[cast(fx.Node, node.args[0])], (tuple, list)):
                known[node] = known[cast(fx.Node, node.args[0])][cast(int, node.args[1])]
            else:
                self._check_grad(node, grad)
                known[node] = self.graph.node_copy(node, known.__getitem__)
        raise AssertionError("a graph ends with its output")

    def _region(self, node: fx.Node, known: dict[fx.Node, Any], grad: bool) -> Any:
        place = REGIONS[op_name(node)]
        body = attribute(cast(fx.Node, node.args[place]))
        assert isinstance(body, fx.GraphModule)
        operands = [map_arg(operand, known.__getitem__) for operand in node.args[place + 1 :]]
        inputs = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=True))
        sets_grad = op_name(node) == "wrap_with_set_grad_enabled"
        return self.copy(body.graph, inputs, cast(bool, node.args[0]) if sets_grad else grad)

    def _check_grad(self, node: fx.Node, grad: bool) -> None:
        """The notes are finer than the regions: a region of `no_grad` without its note would be ours to explain."""
        modes, value = modes_of(node), result(node)
        floating = value is not None and value.is_floating_point()
        if node.op == "call_function" and floating and not grad and (modes is None or modes.grad):
            why = "torch.export puts it under no_grad, the model ran it with gradients"
            self.refusals.append(refusal(node, why, "open autocast outside of no_grad, or call the op outside of both"))


def _held_by_regions(node: fx.Node) -> bool:
    return all(op_name(user) in REGIONS for user in node.users)
