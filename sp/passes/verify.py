"""Verify: reads the local program like a stranger and checks what makes it sound.

    replicated value → op on shards, differentiable    must pass sp.replicate, or its gradient is one rank's part
    sharded value    → op on replicated values         must pass sp.unshard or sp.reduce
    partial value    → anything                        must pass sp.reduce
    sharded value    → op on shards                    must be what the op's rule needs, and make what it says
    any value        → output                          whole, unless its port is local
    any value                                          must not be sequence × sequence
    what has travelled between ranks                   must be read by something

Of what earlier passes found it reads nothing but each value's placement.  The pass changes nothing.  A violation is our
own mistake, never the user's: it is an AssertionError, which is raised under `python -O` too.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import cast

from torch import fx

from sp.passes.fxtools import is_parameter, op_name, result, shape, tensor, tensor_operands
from sp.passes.overlap import is_replica
from sp.passes.placements import carries_gradients, is_differentiable
from sp.passes.rule_table import CREATIONS, find_rule
from sp.passes.rules import Case, Refused
from sp.passes.score_sources import is_for_tiles
from sp.program import Partial, Placement, Program, Replicated, Sharded

_BORDERS = frozenset({"sp.shard", "sp.unshard", "sp.reduce", "sp.replicate", "sp.promise", "sp.replicate_all"})
_TRAVELLED = frozenset({"sp.unshard", "sp.reduce", "sp.move"})
_SPANS = frozenset({"sp.narrow", "sp.widen", "sp.move"})  # what they take and give is in their arguments


@dataclass(frozen=True)
class Verify:
    name: str = "verify"

    def run(self, program: Program) -> Program:
        differentiable: set[fx.Node] = set()
        for node in program.graph.nodes:
            if _is_source(node) or is_differentiable(node, differentiable):
                differentiable.add(node)
            if node.op == "call_function" and result(node) is not None:
                _check_size(node, program)
                if op_name(node) in _TRAVELLED and not node.users:
                    raise AssertionError(f"nobody reads {node}, which has travelled")
                _check_edges(node, program, differentiable)
        _check_outputs(program)
        return program.note(
            self.name, f"{len(program.graph.nodes)} nodes: every border op in its place, no S × S value"
        )

    def check(self, program: Program) -> None:
        del program  # `run` asserts


def _is_source(node: fx.Node) -> bool:
    value = result(node)
    return is_parameter(node) or (node.op == "placeholder" and value is not None and carries_gradients(value))


def _check_size(node: fx.Node, program: Program) -> None:
    held = sum(map(program.holds_sequence, shape(node)))
    if held > 1 and not is_for_tiles(node):
        raise AssertionError(f"{node} is sequence × sequence: {shape(node)}")


def _check_edges(node: fx.Node, program: Program, differentiable: set[fx.Node]) -> None:
    name = op_name(node)
    if name in _BORDERS | CREATIONS or node.target is operator.getitem:
        return
    operands = tensor_operands(node)
    placed = {operand: cast("Placement | None", operand.meta.get("placement")) for operand in operands}
    unreduced = [operand for operand, placement in placed.items() if placement is None]
    if unreduced:
        raise AssertionError(f"{node} reads {unreduced[0]}, each rank's part of a sum, past sp.reduce")
    sharded = [operand for operand, placement in placed.items() if isinstance(placement, Sharded)]
    if not sharded:
        return
    if isinstance(node.meta.get("placement"), Replicated):
        raise AssertionError(f"{node} mixes shards into a replicated value")
    for operand, placement in placed.items():
        bare = isinstance(placement, Replicated) and operand in differentiable and not is_replica(operand)
        if bare:
            raise AssertionError(f"{node} reads {operand} past sp.replicate: its gradient would be one rank's part")
    if name not in _SPANS:
        _check_rule(node, program, sharded[0], placed)


def _check_rule(node: fx.Node, program: Program, anchor: fx.Node, placed: dict[fx.Node, Placement | None]) -> None:
    try:
        operands = tuple(tensor_operands(node))
        ruling = find_rule(node)(Case(node, anchor, cast(Sharded, placed[anchor]), operands, program.symbols))
    except Refused as refused:
        raise AssertionError(f"{node} has no rule for what it reads: {refused.why}") from refused
    for operand, need in ruling.operands.items():
        if placed[operand] != need:
            raise AssertionError(f"{node} reads {operand}, which is {placed[operand]}, as {need}")
    if tensor(node) is not None:
        found = node.meta.get("placement")
        same = isinstance(ruling.output, Partial) if found is None else found == ruling.output
        if not same:
            raise AssertionError(f"{node} is {found or 'partial'}, its rule says {ruling.output}")


def _check_outputs(program: Program) -> None:
    values = cast("tuple[fx.Node, ...]", program.graph.output_node().args[0])
    for port, value in zip(program.outputs, values, strict=True):
        placement = value.meta.get("placement")
        kind = Sharded if port.local else Replicated
        if not isinstance(placement, kind):
            raise AssertionError(f"output {port.name!r} is {placement}, its port is {port}")
