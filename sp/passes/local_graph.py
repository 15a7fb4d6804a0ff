"""LocalGraph: the graph that `localize` writes, with each value's placement and the reason for each inserted op."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from sp.passes.attention import AXIS
from sp.passes.fxtools import exact_quotient, shape, tensor
from sp.passes.sizes import Sizes
from sp.program import Insertion, Placement, Program, Sharded


class LocalGraph:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.graph = fx.Graph()
        self.sizes = Sizes(program, self.graph)
        self.insertions: dict[str, Insertion] = {}

    def insert(
        self, op: torch._ops.OpOverload, args: tuple[object, ...], node: fx.Node, why: str, placement: Placement
    ) -> fx.Node:
        """An op of the compiler's own, for the sake of `node`."""
        made = self.place(self.copy(node, op, args, {}, op._opname), placement)
        made.meta["why"] = why
        self.insertions[made.name] = Insertion(f"{op.namespace}.{op._opname}", node.name, why)
        return made

    def copy(
        self,
        node: fx.Node,
        target: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        name: str | None = None,
    ) -> fx.Node:
        """A call that stands for `node`."""
        made = self.graph.create_node("call_function", target, args, dict(kwargs), name or node.name)  # type: ignore[arg-type]
        made.meta = dict(node.meta)
        return made

    def place(self, made: fx.Node, placement: Placement) -> fx.Node:
        if tensor(made) is not None:
            made.meta["placement"] = placement
        return made

    def span(self, placement: Sharded) -> tuple[object, ...]:
        """`dim, outer, start, length, total` as the sp:: ops take them."""
        expressions = (placement.outer, placement.start, placement.length, placement.total)
        return (placement.dim, *(self.sizes.node(expression) for expression in expressions))

    def tail(self, node: fx.Node, placement: Sharded) -> tuple[object, ...]:
        """`layout, group` and, where dims behind the sequence are merged into its dim, how many elements they are."""
        inner = exact_quotient(shape(node)[placement.dim], placement.outer * placement.length)
        assert inner is not None, f"{node} is not {placement}"
        last = () if inner == 1 else (self.sizes.node(inner),)
        return (self.program.strategy.layout, AXIS, *last)
