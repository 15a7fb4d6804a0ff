"""Canonical: one order and one set of names for equal graphs, in whatever order a model's code came to its lines.

    cos_local = aten.cos(a);  cos_global = aten.cos(b)        on rank 0, whose model loops over a set of names
    cos_global = aten.cos(b);  cos_local = aten.cos(a)        on rank 1
    →
    cos = aten.cos(b);  cos_1 = aten.cos(a)                   on both: in the order in which the outputs need them

Ranks communicate in the order of their graphs, and compare them by hash before they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import fx
from torch.fx.node import map_arg

from sp.passes.fxtools import op_name
from sp.program import Program


@dataclass(frozen=True)
class Canonical:
    name: str = "canonical"

    def run(self, program: Program) -> Program:
        order = list(_needed(program.graph))
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in order:
            copies[node] = _copied(node, graph, copies)
        graph.output(map_arg(program.graph.output_node().args[0], copies.__getitem__))
        module = fx.GraphModule(program.graph_module, graph)
        refused = {copies[node].name: program.refused[node.name] for node in order if node.name in program.refused}
        moved = sum(a is not b for a, b in zip(order, program.graph.nodes, strict=False))
        text = f"{moved} of {len(order)} nodes in another place than they were written"
        return replace(program, graph_module=module, refused=refused).note(self.name, text)

    def check(self, program: Program) -> None:
        order = [node.name for node in _needed(program.graph)]
        if order != [node.name for node in program.graph.nodes][:-1]:
            raise AssertionError("canonical left another order")


def _needed(graph: fx.Graph) -> Iterator[fx.Node]:
    """All nodes but the output: inputs as they are, then what is read from the module, then calls, each of these in the
    order in which the outputs (and what has effects of its own) need them."""
    roots = [*(node for node in graph.nodes if node.is_impure()), graph.output_node()]
    found = [node for node in _depth_first(roots) if node.op not in ("placeholder", "output")]
    yield from graph.find_nodes(op="placeholder")
    yield from (node for node in found if node.op == "get_attr")
    yield from (node for node in found if node.op != "get_attr")


def _depth_first(roots: Sequence[fx.Node]) -> Iterator[fx.Node]:
    """Operands before what reads them, the first operand's first; without recursion, since graphs are deep."""
    seen, stack = set[fx.Node](), [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(operand, False) for operand in reversed(node.all_input_nodes) if operand not in seen]


def _copied(node: fx.Node, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    if node.op != "call_function":
        return graph.node_copy(node, copies.__getitem__)
    args, kwargs = map_arg(node.args, copies.__getitem__), map_arg(node.kwargs, copies.__getitem__)
    made = graph.create_node(node.op, node.target, args, kwargs, op_name(node).rpartition(".")[2])
    made.meta = dict(node.meta)
    return made
