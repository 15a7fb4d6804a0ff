"""Localize: the global program → the program that every rank runs on its own tokens.

    embedding = aten.embedding(weight, input_ids)            sharded(dim 1)
    view      = aten.view(embedding, [B*S, D])               sharded(dim 0, outer=B)
    →
    shard     = sp.shard(input_ids, 1, 1, 0, S, S, 'striped', 'sp')
    replicate = sp.replicate(weight, 'sp')                   identity; sums the gradient over the ranks
    embedding = aten.embedding(replicate, shard)
    view      = aten.reshape(embedding, [-1, D])

Ops are inserted on the edges between replicated and sharded values and nowhere else (JAX's shard_map: invariant and
varying).  No rank appears: all ranks hold this same graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import sympy
import torch
from torch import fx
from torch.fx.node import map_arg

from sp.passes.attention import AXIS
from sp.passes.fxtools import op_name, product, shape
from sp.passes.local_graph import LocalGraph
from sp.passes.lowering import LOWERINGS, moved
from sp.passes.output_forms import OutputForm, form_of
from sp.passes.place import find_placements
from sp.passes.placements import Placements
from sp.passes.rule_table import passes_through
from sp.passes.rules import Ruling
from sp.program import Partial, Placement, Port, Program, Replicated, Sharded
from sp.runtime import ops

_VIEWS = frozenset({"aten.view", "aten._unsafe_view"})


@dataclass(frozen=True)
class Localize:
    """outputs: "global" (gather what is sharded), "local", or a name → form mapping for some outputs."""

    outputs: OutputForm = "global"
    name: str = "localize"

    def run(self, program: Program) -> Program:
        localizer = _Localizer(program, _found(program))
        ports = localizer.build(self.outputs)
        module = fx.GraphModule(program.graph_module, localizer.out.graph)
        module.graph.eliminate_dead_code()
        alive = {node.name for node in module.graph.nodes}
        inserted = tuple(insertion for name, insertion in localizer.out.insertions.items() if name in alive)
        placed = {node.name: node.meta["placement"] for node in module.graph.nodes if "placement" in node.meta}
        text = f"{len(inserted)} ops inserted between replicated and sharded values"
        local = replace(program, graph_module=module, outputs=ports, placements=placed, insertions=inserted, found=None)
        return local.note(self.name, text)

    def check(self, program: Program) -> None:
        for node in program.graph.nodes:
            if op_name(node) == "sp.shard" and isinstance(node.args[0].meta["placement"], Sharded):
                raise AssertionError(f"{node} cuts a shard again")


def _found(program: Program) -> Placements:
    """What place has found; sought again where the graph has been copied since."""
    if isinstance(program.found, Placements):
        return program.found
    found, refusals = find_placements(program)
    if refusals.listed:
        raise AssertionError("place has refused nothing")
    return found


class _Localizer:
    """Builds the local graph.  Each old value has up to three forms: whole, one shard per placement, and a replica
    (whole, its gradient summed over the ranks)."""

    def __init__(self, program: Program, found: Placements) -> None:
        self.program, self.found = program, found
        self.out = LocalGraph(program)
        self.whole: dict[fx.Node, fx.Node] = {}
        self.shards: dict[tuple[fx.Node, Placement], fx.Node] = {}
        self.replicas: dict[fx.Node, fx.Node] = {}

    def build(self, outputs: OutputForm) -> tuple[Port, ...]:
        for node in self.program.graph.nodes:
            if node.op == "output":
                return self._output(node, outputs)
            self._visit(node)
        raise AssertionError("a graph ends with its output")

    def _visit(self, node: fx.Node) -> None:
        natural = self.found.natural.get(node, Replicated())
        if isinstance(natural, Sharded):
            if node.op == "placeholder":
                self.shards[node, natural] = self.out.place(self.out.graph.node_copy(node), natural)
            else:
                self.shard_of(node, natural)
        elif isinstance(natural, Partial):
            partial = self._computed(node)
            why = f"each rank has its own tokens' part of {node.name}"
            self.whole[node] = self.out.insert(ops.reduce, (partial, natural.op, AXIS), node, why, Replicated())
        elif node in self.found.rulings and node not in self.found.local:
            self.whole[node] = self.out.place(self._computed(node), natural)
        else:
            copied = self.out.graph.node_copy(node, self._as_it_is)
            self.whole[node] = self.out.place(copied, natural)

    def _as_it_is(self, node: fx.Node) -> fx.Node:
        """For replicated ops: the whole; of a local input, of which only sizes are read, the shard."""
        natural = self.found.natural.get(node)
        return self.shards[node, natural] if isinstance(natural, Sharded) else self.whole[node]

    def _form(self, node: fx.Node, need: Placement) -> fx.Node:
        """The form of an old value that a sharded op needs."""
        if isinstance(need, Sharded):
            return self.shard_of(node, need)
        if isinstance(placed := self.found.natural[node], Sharded) and node not in self.whole:
            self.whole[node] = self._whole(node, placed, f"the scores of an attention need {node.name} for all tokens")
        if node not in self.found.differentiable:
            return self.whole[node]
        if node not in self.replicas:
            why = f"{node.name} is the same on every rank; its gradient is the sum over the ranks"
            self.replicas[node] = self.out.insert(ops.replicate, (self.whole[node], AXIS), node, why, Replicated())
        return self.replicas[node]

    def shard_of(self, node: fx.Node, need: Sharded) -> fx.Node:
        key = (node, need)
        if key not in self.shards:
            computed = node in self.found.rulings and self.found.sharded(node) == need
            self.shards[key] = self.out.place(self._computed(node) if computed else self._dealt(node, need), need)
        return self.shards[key]

    def _computed(self, node: fx.Node) -> fx.Node:
        return self._call(node, self.found.rulings[node])

    def _dealt(self, node: fx.Node, need: Sharded) -> fx.Node:
        """Moved from where it is, if it is sharded already; otherwise cut."""
        natural = self.found.natural[node]
        if isinstance(natural, Sharded):
            return moved(self, node, self.shard_of(node, natural), natural, need)
        why = f"{node.name} is whole on every rank and meets values that are {need}"
        return self.out.insert(
            ops.shard, (self.whole[node], *self.out.span(need), *self.out.tail(node, need)), node, why, need
        )

    def _call(self, node: fx.Node, ruling: Ruling) -> fx.Node:
        """The op on one rank's part of its operands."""
        if passes_through(node):
            source = node.all_input_nodes[0]
            placed = self.found.sharded(source)
            results = self.whole[source] if placed is None else self.shard_of(source, placed)
            return self.out.copy(node, node.target, (results, node.args[1]), {})
        if ruling.lowering != "call":
            return LOWERINGS[ruling.lowering](self, node, ruling)

        def local(operand: fx.Node) -> fx.Node:
            need = ruling.operands.get(operand)
            return self.whole[operand] if need is None else self._form(operand, need)

        kwargs = map_arg(node.kwargs, local)
        args = [
            self._lowered(ruling.arguments[place]) if place in ruling.arguments else map_arg(argument, local)
            for place, argument in enumerate(node.args)
        ]
        target = torch.ops.aten.reshape.default if op_name(node) in _VIEWS else node.target
        return self.out.copy(node, target, tuple(args), kwargs)

    def _lowered(self, sizes: object) -> object:
        if isinstance(sizes, list):
            return [self._lowered(size) for size in sizes]
        if isinstance(sizes, fx.Node):
            return self.whole[sizes]
        return self.out.sizes.node(sizes) if isinstance(sizes, sympy.Expr) else sizes

    def _output(self, node: fx.Node, outputs: OutputForm) -> tuple[Port, ...]:
        results: list[fx.Node] = []
        ports: list[Port] = []
        for port, value in zip(self.program.outputs, cast(tuple[fx.Node, ...], node.args[0]), strict=True):
            placement = self.found.natural[value]
            sharded = placement if isinstance(placement, Sharded) else None
            local = sharded is not None and form_of(port, outputs) == "local"
            results.append(self._gathered(value, placement, port.name, local))
            dim, total = (None, None) if sharded is None else (sharded.dim, sharded.total)
            whole = None if sharded is None or local else product(shape(value)) * value.meta["val"].dtype.itemsize
            ports.append(Port(port.name, dim, local, port.kept, total, whole))
        self.out.graph.output(tuple(results))
        return tuple(ports)

    def _gathered(self, value: fx.Node, placement: Placement, name: str, local: bool) -> fx.Node:
        if not isinstance(placement, Sharded):
            return self.whole[value]
        return (
            self.shard_of(value, placement)
            if local
            else self._whole(value, placement, f"output {name!r} is asked for whole")
        )

    def _whole(self, node: fx.Node, placement: Sharded, why: str) -> fx.Node:
        arguments = (self.shard_of(node, placement), *self.out.span(placement), *self.out.tail(node, placement))
        return self.out.insert(ops.unshard, arguments, node, why, Replicated())
