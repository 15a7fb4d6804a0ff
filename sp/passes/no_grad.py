"""Detach: what `torch.no_grad()` did, said by a node of its own.

    mul = aten.mul(x, weight)        under no_grad           mul    = aten.mul(x, weight)
    add = aten.add(x, mul)                               →   detach = aten.detach(mul)
                                                             add    = aten.add(x, detach)

Only where a gradient could flow: rotary tables and masks made under `no_grad` need none.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from sp.passes.fxtools import is_parameter, op_name, result, tensor
from sp.passes.modes import forget_modes, is_quiet
from sp.program import Program


@dataclass(frozen=True)
class Detach:
    name: str = "detach"

    def run(self, program: Program) -> Program:
        carries, count = Gradients(stop_at_quiet=False), 0
        for node in list(program.graph.nodes):
            if not carries(node) or tensor(node) is None or not quiet(node):
                continue
            loud = [user for user in node.users if not quiet(user)]
            if loud:
                count += 1
                _detach(node, loud)
        for node in program.graph.nodes:
            forget_modes(node)
        return program.note(self.name, f"{count} values made under no_grad detached")

    def check(self, program: Program) -> None:
        if any(is_quiet(node) for node in program.graph.nodes):
            raise AssertionError("detach left modes")


def _detach(node: fx.Node, users: list[fx.Node]) -> None:
    with node.graph.inserting_after(node):
        detached = node.graph.call_function(torch.ops.aten.detach.default, (node,))
    detached.meta = dict(node.meta)
    for user in users:
        user.replace_input_with(node, detached)


def quiet(node: fx.Node) -> bool:
    """As `is_quiet`; one of several results is as quiet as all of them."""
    return is_quiet(cast(fx.Node, node.args[0]) if node.target is operator.getitem else node)


class Gradients:
    """Whether a gradient can flow into a value.  Any parameter counts: what is frozen today may train tomorrow.

    Ask in the order of the graph.  stop_at_quiet: heed `no_grad`; without, only `detach` nodes stop a gradient."""

    def __init__(self, *, stop_at_quiet: bool) -> None:
        self.stop_at_quiet = stop_at_quiet
        self.known: dict[fx.Node, bool] = {}

    def __call__(self, node: fx.Node) -> bool:
        if node not in self.known:
            self.known[node] = self._judge(node)
        return self.known[node]

    def _judge(self, node: fx.Node) -> bool:
        value = result(node)
        if value is None or not (value.is_floating_point() or value.is_complex()):
            return False
        if node.op in ("placeholder", "get_attr"):
            return node.op == "placeholder" or is_parameter(node)
        stops = self.stop_at_quiet and quiet(node)
        return not stops and not _reads_no_values(node) and any(self(operand) for operand in node.all_input_nodes)


def _reads_no_values(node: fx.Node) -> bool:
    """Of its operand, an op of this kind reads shape and dtype; or it is `detach`."""
    name = op_name(node)
    return name == "aten.detach" or name.endswith("_like") or name.startswith("aten.new_")
