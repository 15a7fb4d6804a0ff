"""Decompose: what looks at the whole sequence → slices, sums, maxima and moves, which cross ranks exactly.

    select = aten.select(x, 1, -1)                    one position of a sharded x
    →  slice = aten.slice(x, 1, -1);  squeeze = aten.squeeze(slice, 1)

    softmax = aten.softmax(x, 1)                      along the sequence, outside of attention
    →  detach = aten.detach(x);  peak = sp.peak(detach, 1, 'max')
       exp = aten.exp(x - peak);  div = exp / aten.sum(exp, [1], True)

Only in the activation domain, where values will be sharded: what is computed from ids and positions alone stays whole.
Both forms are equal on one device, gradients included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from torch import fx

from sp.errors import Refusal
from sp.passes.builder import Builder
from sp.passes.decompositions import convolution, extremes, picks, statistics
from sp.passes.fxtools import is_parameter, op_name, refusal
from sp.passes.rules import Refused
from sp.program import Program

Made = fx.Node | tuple[fx.Node, ...]
Decomposition = Callable[[fx.Node, Builder], Made | None]  # None: it is no matter of the sequence
DECOMPOSITIONS: Mapping[str, Decomposition] = {
    "aten.select": picks.select,
    "aten.index": picks.index,
    "aten.gather": picks.gather,
    **dict.fromkeys(("aten.split", "aten.split_with_sizes", "aten.chunk"), picks.pieces),
    "aten.roll": picks.roll,
    **dict.fromkeys(("aten.amax", "aten.amin"), extremes.over_dims),
    **dict.fromkeys(("aten.max", "aten.min"), extremes.of_dim),
    **dict.fromkeys(("aten.argmax", "aten.argmin"), extremes.place),
    **dict.fromkeys(("aten.softmax", "aten.log_softmax"), statistics.softmax),
    "aten.logsumexp": statistics.logsumexp,
    **dict.fromkeys(("aten.var", "aten.var_mean"), statistics.variance),
    **dict.fromkeys(("aten.any", "aten.all"), statistics.anything),
    "aten.conv1d": convolution.conv1d,
}


@dataclass(frozen=True)
class Decompose:
    """everywhere: in the index domain too, as if all inputs were shards."""

    everywhere: bool = False
    name: str = "decompose"

    def run(self, program: Program) -> Program:
        active = set(program.graph.nodes) if self.everywhere else activations(program)
        refused, changed = dict[str, Refusal](), list[str]()
        for node in list(program.graph.nodes):
            decomposition = DECOMPOSITIONS.get(op_name(node)) if node.op == "call_function" else None
            if decomposition is None or node not in active or node.name in program.refused:
                continue
            builder = Builder(node, program)
            try:
                made = decomposition(node, builder)
            except Refused as reason:
                refused[node.name] = refusal(node, reason.why, reason.remedy)
                continue
            if made is not None:
                _replace(node, made)
                changed.append(node.name)
                program = _narrowed(program, builder)
        program.graph.eliminate_dead_code()
        text = f"looks at the whole sequence made slices, sums and maxima: {', '.join(changed) or 'none'}"
        return program.refuse(refused).note(self.name, text)

    def check(self, program: Program) -> None:
        left = [node for node in activations(program) if op_name(node) == "aten.select"]
        left = [node for node in left if picks.on_sequence(node, program) and node.name not in program.refused]
        if left:
            raise AssertionError(f"decompose left {left}")


def activations(program: Program) -> set[fx.Node]:
    """The values that depend on parameters or on inputs of which each rank has its own part."""
    local = {port.name for port in program.inputs if port.local}
    found: set[fx.Node] = set()
    for node in program.graph.nodes:
        mine = is_parameter(node) or (node.op == "placeholder" and node.target in local)
        if mine or any(operand in found for operand in node.all_input_nodes):
            found.add(node)
    return found


def _narrowed(program: Program, builder: Builder) -> Program:
    """For the lengths only for which the decomposition holds."""
    sequences = [
        replace(one, shortest=max(one.shortest, builder.shortest.get(one.symbol, 0))) for one in program.sequences
    ]
    return replace(program, sequences=tuple(sequences))


def _replace(node: fx.Node, made: Made) -> None:
    """Of several results, each takes the place of its `getitem`."""
    if isinstance(made, fx.Node):
        node.replace_all_uses_with(made)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(made[cast(int, user.args[1])])
            node.graph.erase_node(user)
    node.graph.erase_node(node)
