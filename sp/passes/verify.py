"""Verify: reads the local program like a stranger and checks what makes it sound.

    replicated value → op on shards, differentiable    must pass sp.replicate, or its gradient is one rank's part
    sharded value    → op on replicated values         must pass sp.unshard or sp.reduce
    any value                                          must not be sequence × sequence

The pass changes nothing.  A violation is our own mistake, never the user's: it is an AssertionError.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import fx

from sp.passes.fxtools import is_parameter, op_name, result, shape, tensor_operands
from sp.program import Program, Replicated, Sharded

_BORDERS = frozenset({"sp.shard", "sp.unshard", "sp.reduce", "sp.replicate"})


@dataclass(frozen=True)
class Verify:
    name: str = "verify"

    def run(self, program: Program) -> Program:
        for node in program.graph.nodes:
            if node.op == "call_function" and result(node) is not None:
                _check_edges(node)
                _check_size(node, program)
        return program.note(
            self.name, f"{len(program.graph.nodes)} nodes: every border op in its place, no S × S value"
        )

    def check(self, program: Program) -> None:
        del program  # `run` asserts


def _check_edges(node: fx.Node) -> None:
    if op_name(node) in _BORDERS or node.target is operator.getitem:
        return
    placed = [(operand, operand.meta.get("placement")) for operand in tensor_operands(node)]
    varying = any(isinstance(placement, Sharded) for _, placement in placed)
    if not varying:
        return
    assert not isinstance(node.meta.get("placement"), Replicated), f"{node} mixes shards into a replicated value"
    for operand, placement in placed:
        bare = is_parameter(operand) and isinstance(placement, Replicated)
        assert not bare, f"{node} reads {operand} past sp.replicate: its gradient would be one rank's part"


def _check_size(node: fx.Node, program: Program) -> None:
    held = sum(size.has(program.sequence.symbol) for size in shape(node))
    assert held <= 1, f"{node} is sequence × sequence: {shape(node)}"
