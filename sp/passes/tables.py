"""Rows of tables: whether all indices of a call lie within them, before anybody computes with one.

    embedding(tokens, input_ids)            0 ≤ input_ids < 50257
    embedding(positions, arange(S))         S ≤ 1024
    cross_entropy_loss(logits, labels)      0 ≤ labels < 50257, or -100

One device raises an IndexError.  On ranks only that one would which holds the token, and the others would wait for it.
So each rank looks at the indices of all tokens, computed apart from everything else, and all raise alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from sp.errors import InputError
from sp.passes.fxtools import describe, is_parameter, op_name, positional, result, shape, source_line
from sp.program import Program

_IGNORED = -100
_EMBEDDING, _LOSSES = "aten.embedding", ("aten.cross_entropy_loss", "aten.nll_loss", "aten.nll_loss_nd")


@dataclass(frozen=True)
class Read:
    """An op that reads one of `rows` rows for each index, but for those that are `ignored`."""

    name: str
    source: str
    rows: int
    ignored: int | None


@dataclass(frozen=True)
class Tables:
    """What a program reads by indices that depend on its inputs alone.

    indices: takes the inputs of the program, and makes what each of `reads` reads by."""

    reads: tuple[Read, ...]
    indices: fx.GraphModule | None

    @staticmethod
    def of(program: Program) -> Tables:
        """Of a program before any is placed.  Where inputs are shards, only of indices that are passed as they are:
        what is computed from them takes other ranks."""
        local = any(port.local for port in program.inputs)
        found = [(read, index) for read, index in _reads(program.graph) if _is_plain(index, local)]
        if not found:
            return Tables((), None)
        return Tables(tuple(read for read, _ in found), _computing(program, [index for _, index in found]))

    def check(self, inputs: Sequence[Tensor | None]) -> None:
        """InputError for an index that is not in its table."""
        if self.indices is None:
            return
        with torch.no_grad():
            made: Sequence[Tensor] = self.indices(*inputs)
            outside = [_outside(index, read) for read, index in zip(self.reads, made, strict=True)]
            if not bool(torch.stack([mask.any() for mask in outside]).any()):
                return
        read, wrong = next(
            (read, index[mask]) for read, index, mask in zip(self.reads, made, outside, strict=True) if mask.any()
        )
        low, high = int(wrong.min()), int(wrong.max())
        raise InputError(
            f"{read.name} reads {f'row {low}' if low == high else f'rows from {low} to {high}'} of {read.rows}"
            f"\n  at:     {read.source}",
            needed=f"indices from 0 to {read.rows - 1}{'' if read.ignored is None else f', or {read.ignored}'}",
            remedy="positions: a sequence no longer than their table; ids and labels: those of the model's vocabulary",
        )


def _outside(index: Tensor, read: Read) -> Tensor:
    wrong = (index < 0) | (index >= read.rows)
    return wrong if read.ignored is None else wrong & (index != read.ignored)


def _reads(graph: fx.Graph) -> Iterator[tuple[Read, fx.Node]]:
    for node in graph.nodes:
        if node.op != "call_function" or op_name(node) not in (_EMBEDDING, *_LOSSES):
            continue
        operands: tuple[Any, ...] = positional(node)
        (first, index), of = operands[:2], 0
        if op_name(node) == _EMBEDDING:
            ignored = None
        else:
            of, ignored = min(1, len(shape(first)) - 1), operands[4] if len(operands) > 4 else _IGNORED
        rows = shape(first)[of]
        kind = result(index) if isinstance(index, fx.Node) else None
        if rows.is_Integer and kind is not None and not (kind.is_floating_point() or kind.is_complex()):
            yield Read(describe(node), source_line(node), int(rows), ignored), index


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found, open_ = set[fx.Node](), [node]
    while open_:
        if (each := open_.pop()) not in found:
            found.add(each)
            open_ += each.all_input_nodes
    return found


def _is_plain(index: fx.Node, local: bool) -> bool:
    if local:
        return index.op == "placeholder"
    return not any(is_parameter(node) or _may_differ(node) for node in _ancestors(index))


def _may_differ(node: fx.Node) -> bool:
    """Whether it may give something else another time."""
    if node.op != "call_function":
        return False
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or isinstance(node.target, torch._ops.HigherOrderOperator)


def _computing(program: Program, indices: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of the graph that computes them, with all of its inputs."""
    needed = {node for index in indices for node in _ancestors(index)}
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in program.graph.nodes:
        if node.op == "placeholder" or node in needed:
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[index] for index in indices))
    return fx.GraphModule(program.graph_module, graph)
