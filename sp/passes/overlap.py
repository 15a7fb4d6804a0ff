"""Overlap: the gradients of one block are summed in one message, which travels while backward goes on.

    replicate   = sp.replicate(blocks.0.q, 'sp')              sums one gradient, and waits for it
    replicate_1 = sp.replicate(blocks.0.k, 'sp')
    →
    promise       = sp.promise([blocks.0.q, blocks.0.k], 'sp')    at the start: waits at the end of backward
    …
    replicate_all = sp.replicate_all([blocks.0.q, blocks.0.k], promise, 'sp')    in front of block 0: posts the sum
    replicate     = replicate_all[0]
    replicate_1   = replicate_all[1]

Parameters that belong to no block stay with those used next to them.  As in DDP, a message has a size, so that the
first part of a large block need not wait for the last.  A parameter that is cast on its way is summed as it is:
`replicate(to(w))` becomes `to(replicate(w))`, as many bytes on the wire and one rounding less.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import fx

from sp.passes.attention import AXIS
from sp.passes.fxtools import is_parameter, op_name, tensor
from sp.program import Insertion, Program, Replicated
from sp.runtime import ops

_CASTS = frozenset({"aten.to", "aten._to_copy"})


@dataclass(frozen=True)
class _Parameter:
    """A parameter and the `sp.replicate` nodes through which it enters sharded computation, in order."""

    node: fx.Node
    entries: tuple[fx.Node, ...]

    @property
    def value(self) -> torch.Tensor:
        return cast(torch.Tensor, tensor(self.node))

    @property
    def bytes(self) -> int:
        """On the wire: 16 bits are summed in 32."""
        return self.value.numel() * max(self.value.dtype.itemsize, 4)

    @property
    def block(self) -> str:
        """`layers.3` of `layers.3.mlp.up.weight`; nothing where no number is in the path."""
        parts = str(self.node.target).removeprefix("model.").split(".")
        numbers = [at for at, part in enumerate(parts) if part.isdigit()]
        return ".".join(parts[: numbers[0] + 1]) if numbers else ""


Message = tuple[_Parameter, ...]


@dataclass(frozen=True)
class Overlap:
    """limit: bytes of one message, unless a single gradient has more."""

    limit: int = 25 << 20
    name: str = "overlap"

    def run(self, program: Program) -> Program:
        graph = program.graph
        messages = [part for group in _groups(_parameters(graph)) for part in _cut(group, self.limit)]
        insertions = _renewed(program.insertions, messages)
        _to_the_top(graph, [parameter.node for message in messages for parameter in message])
        order = {node: index for index, node in enumerate(graph.nodes)}
        start = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
        for message in messages:
            _send(message, start, order)
        placed = {node.name: node.meta["placement"] for node in graph.nodes if "placement" in node.meta}
        return replace(program, placements=placed, insertions=insertions).note(self.name, _summary(messages))

    def check(self, program: Program) -> None:
        for node in program.graph.nodes:
            if op_name(node) == "sp.promise":
                users = [op_name(user) for user in node.users]
                if users != ["sp.replicate_all"]:
                    raise AssertionError(f"{node} is read by {users}: a message has one reader")


def is_replica(node: fx.Node) -> bool:
    """Whether the gradient of this value is summed over the ranks: it enters here, or is cast behind that."""
    if op_name(node) in _CASTS or node.target is operator.getitem:
        return is_replica(node.all_input_nodes[0])
    return op_name(node) in ("sp.replicate", "sp.replicate_all")


def _parameters(graph: fx.Graph) -> list[_Parameter]:
    """Those whose gradients are summed, in the order of their first use."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        if op_name(node) == "sp.replicate":
            source = _way(node)[0].all_input_nodes[0]
            value = tensor(source)
            if is_parameter(source) and value is not None and value.is_floating_point():
                found.setdefault(source, []).append(node)
    return [_Parameter(node, tuple(entries)) for node, entries in found.items()]


def _way(entry: fx.Node) -> list[fx.Node]:
    """The casts of what enters at `entry`, if they are there for nothing else, and `entry` itself."""
    way, source = [entry], cast(fx.Node, entry.args[0])
    while op_name(source) in _CASTS and len(source.users) == 1:
        way.insert(0, source)
        source = source.all_input_nodes[0]
    return way


def _groups(parameters: Sequence[_Parameter]) -> list[list[_Parameter]]:
    """One for each block and dtype; of parameters of no block, one for each stretch of the graph without a block."""
    groups: dict[object, list[_Parameter]] = {}
    stretch, before = 0, ""
    for parameter in parameters:
        stretch += bool(before) and not parameter.block
        before = parameter.block
        key = (before or stretch, parameter.value.dtype, parameter.value.device)
        groups.setdefault(key, []).append(parameter)
    return list(groups.values())


def _cut(group: Sequence[_Parameter], limit: int) -> Iterator[Message]:
    """Messages of at most `limit` bytes, in the order of use; a single parameter may be larger."""
    message: list[_Parameter] = []
    for parameter in group:
        if message and sum(each.bytes for each in message) + parameter.bytes > limit:
            yield tuple(message)
            message = []
        message.append(parameter)
    yield tuple(message)


def _to_the_top(graph: fx.Graph, nodes: Sequence[fx.Node]) -> None:
    """What promises read must stand in front of everything that is computed."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in nodes:
        if node is not first:
            first.prepend(node)


def _send(message: Message, start: fx.Node, order: Mapping[fx.Node, int]) -> None:
    """Put a promise at `start` and a `replicate_all` in front of the first use."""
    graph, xs = start.graph, [parameter.node for parameter in message]
    tops = {
        parameter: min((_way(entry)[0] for entry in parameter.entries), key=order.__getitem__) for parameter in message
    }
    values = [parameter.value for parameter in message]
    meta = {key: value for key, value in xs[0].meta.items() if key != "placement"}
    with graph.inserting_before(start):
        promise = graph.create_node("call_function", ops.promise, (xs, AXIS), name="promise")
    wide = torch.float32 if values[0].dtype.itemsize < 4 else values[0].dtype
    promise.meta = {**meta, "val": [values[0].new_empty(size, dtype=wide) for size in _ticket_sizes(values)]}
    with graph.inserting_before(min(tops.values(), key=order.__getitem__)):
        replicas = graph.create_node("call_function", ops.replicate_all, (xs, promise, AXIS), name="replicate_all")
    replicas.meta = {**meta, "val": values, "why": _insertion(message).why}
    for index, (parameter, top) in enumerate(tops.items()):
        _read(replicas, index, parameter, top)


def _ticket_sizes(values: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    return [(sum(value.numel() for value in values),), *(() for _ in values)]


def _read(replicas: fx.Node, index: int, parameter: _Parameter, top: fx.Node) -> None:
    """Let everything read the replica, in front of `top`, that read one of the parameter's entries."""
    replica, *others = parameter.entries
    ways = [_way(entry) for entry in parameter.entries]
    if top is not replica:
        top.prepend(replica)
    replica.target, replica.args = operator.getitem, (replicas, index)
    replica.meta = {**parameter.node.meta, "placement": Replicated()}
    for *casts, entry in ways:
        if casts:
            entry.replace_all_uses_with(casts[-1])
            casts[0].replace_input_with(parameter.node, replica)
        elif entry is not replica:
            entry.replace_all_uses_with(replica)
    for entry in others:
        replica.graph.erase_node(entry)


def _renewed(insertions: Sequence[Insertion], messages: Sequence[Message]) -> tuple[Insertion, ...]:
    """Each message in place of the first `sp.replicate` that went into it."""
    sent = {
        cast(fx.Node, entry.args[0]).name: at
        for at, message in enumerate(messages)
        for parameter in message
        for entry in parameter.entries
    }
    renewed: dict[int, Insertion] = {}
    for number, insertion in enumerate(insertions):
        at = sent.get(insertion.value) if insertion.op == "sp.replicate" else None
        if at is None:
            renewed[number] = insertion
        elif -1 - at not in renewed:
            renewed[-1 - at] = _insertion(messages[at])
    return tuple(renewed.values())


def _insertion(message: Message) -> Insertion:
    first, size = message[0], sum(parameter.bytes for parameter in message)
    what = f"the gradients of {len(message)} parameters are" if len(message) > 1 else "its gradient is"
    value = first.block if first.block and len(message) > 1 else first.node.name
    return Insertion("sp.replicate_all", value, f"{what} summed in one message of {size:,} bytes, during backward")


def _summary(messages: Sequence[Message]) -> str:
    count, size = sum(map(len, messages)), sum(parameter.bytes for message in messages for parameter in message)
    return f"{count} sums of gradients in {len(messages)} messages, {size:,} bytes in all"
