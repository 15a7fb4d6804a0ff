"""LocalGradients: parameters keep this rank's part of their gradient, for others to sum (FSDP, DDP, the caller).

    replicate = sp.replicate(q, 'sp')                       tokens of this rank meet the parameter
    linear    = aten.linear(x, replicate)
    linear_1  = aten.linear(pooled, head)                   the same on every rank
    →
    linear    = aten.linear(x, q)                           its gradient: of this rank's tokens
    share     = sp.share(head, 'sp')                        its gradient: 1/world of what every rank finds
    linear_1  = aten.linear(pooled, share)

So the gradient of every parameter is the plain sum over the ranks, whatever the model does with it: no factor depends
on where a parameter is used.

`averaged`: it is their mean instead, `weigh` = sp.weigh(q, 'sp') in place of each replica and no shares.  Then a
parameter may also be used outside of the graph, where every rank finds the same gradient for it: `no_sync`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from sp.passes.attention import AXIS
from sp.passes.fxtools import is_parameter, op_name, result
from sp.passes.placements import carries_gradients, is_differentiable
from sp.program import Program
from sp.runtime import ops


@dataclass(frozen=True)
class LocalGradients:
    name: str = "local_gradients"
    averaged: bool = False

    def run(self, program: Program) -> Program:
        own, shared = 0, 0
        trained = _made_of_parameters(program.graph)
        for node in trained:
            users = [user for user in node.users if user not in trained]
            replicas = [user for user in users if op_name(user) == "sp.replicate"]
            others = [user for user in users if user not in replicas and _passes_gradients(user)]
            if others and not self.averaged:
                _share(node, others)
            for replica in replicas:
                if self.averaged:
                    replica.target = ops.weigh
                else:
                    replica.replace_all_uses_with(node)
                    program.graph.erase_node(replica)
            own, shared = own + bool(replicas), shared + bool(others)
        program.graph_module.recompile()
        return program.note(self.name, f"gradients left to others: parts of {own}, equal shares of {shared}")

    def check(self, program: Program) -> None:
        trained = _made_of_parameters(program.graph)
        left = [node for node in program.graph.nodes if op_name(node) == "sp.replicate" and node.args[0] in trained]
        if left:
            raise AssertionError(f"{left[0]} sums a gradient that others will sum")


def _made_of_parameters(graph: fx.Graph) -> dict[fx.Node, None]:
    """Parameters and what is computed from them alone, the same on every rank; in order."""
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        operands = node.all_input_nodes
        of_constants = all(operand in found or operand.op == "get_attr" for operand in operands)
        border = op_name(node).startswith("sp.")
        if is_parameter(node) or (operands and of_constants and not border and is_differentiable(node, found.keys())):
            found[node] = None
    return found


def _passes_gradients(user: fx.Node) -> bool:
    value = result(user)
    return user.op == "output" or value is None or carries_gradients(value)


def _share(node: fx.Node, users: list[fx.Node]) -> None:
    graph = node.graph
    first = min(users, key=list(graph.nodes).index)
    with graph.inserting_before(first):
        share = graph.create_node("call_function", ops.share, (node, AXIS), name="share")
    share.meta = dict(node.meta)
    for user in users:
        user.replace_input_with(node, share)
