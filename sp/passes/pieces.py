"""Pieces: one flat graph → a graph that calls pieces of it, one for each block of the model, the rest between them.

    embedding = aten.embedding(tokens, ids)                    ids ──→ piece_0  (the rest)
    linear    = aten.linear(embedding, blocks.0.q)                       ↓
    …                                                   →      piece_1  (blocks.0)   code(q, …, embedding)
    linear_8  = aten.linear(add_3, blocks.1.q)                           ↓
    …                                                          piece_2  (blocks.1)   the same code
    loss      = …                                                        ↓
                                                               piece_3  (the rest)

A piece is a plain function: parameters and buffers are arguments like the values that it reads, so blocks that compute
the same share their code, and it is compiled once.  Whoever runs a piece reads its parameters then and not before:
engines that shard them (FSDP) put them in place block by block.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import fx, nn
from torch.fx.node import map_arg

from sp.passes.fxtools import module_path, op_name
from sp.passes.saved_tensors import checkpoint_of

if TYPE_CHECKING:  # importing it takes longer than all of sp
    import networkx as nx


@dataclass(frozen=True)
class Piece:
    """path: of the block, "" for what belongs to none.  code: takes `reads`, then the values that the caller passes;
    returns a tuple.  reads: names of parameters and buffers, as the flat graph's module has them."""

    path: str
    code: fx.GraphModule
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Pieces:
    """graph: calls `piece_0`, `piece_1`, … as modules.  open: blocks that could not be cut out, since another one lies
    between their parts; they are among the rest."""

    graph: fx.Graph
    pieces: tuple[Piece, ...]
    open: tuple[str, ...]


def block_paths(graph: fx.Graph) -> list[str]:
    """The outermost modules that stand in a list (`model.layers.3`), in the order of their first calls."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        parts = module_path(node).split(".")
        numbers = [at for at, part in enumerate(parts) if part.isdigit()]
        if numbers and node.op == "call_function":
            found[".".join(parts[: numbers[0] + 1])] = None
    return list(found)


def cut(module: fx.GraphModule, paths: Collection[str]) -> Pieces:
    """Cut the graph of `module` into pieces.  `paths`: dotted names of modules, none inside of another."""
    owners = _owners(module.graph, paths)
    known = [path for path in paths if path in set(owners.values())]
    pieces = ordered(module.graph, owners)
    whole, shared = fx.Graph(), dict[str, fx.GraphModule]()
    values = {node: whole.node_copy(node) for node in module.graph.find_nodes(op="placeholder")}
    made: list[Piece] = []
    for path, nodes in pieces:
        piece, inputs, results = make_piece(path, nodes)
        code = shared.setdefault(_text(piece.code), piece.code)
        called = whole.call_module(f"piece_{len(made)}", tuple(values[node] for node in inputs))
        values |= {node: whole.call_function(operator.getitem, (called, at)) for at, node in enumerate(results)}
        made.append(Piece(path, code, piece.reads))
    end = module.graph.output_node()
    if returned := [node for node in end.all_input_nodes if node.op == "get_attr"]:
        called = whole.call_module(f"piece_{len(made)}", ())
        values |= {node: whole.call_function(operator.getitem, (called, at)) for at, node in enumerate(returned)}
        made.append(_reading(returned))
    whole.output(map_arg(end.args[0], values.__getitem__))
    found = {piece.path for piece in made}
    return Pieces(whole, tuple(made), tuple(path for path in known if path not in found))


def _text(code: fx.GraphModule) -> str:
    """What pieces that share their code have in common: what it computes, and which parts of it are checkpoints."""
    names = [checkpoint_of(node) for node in code.graph.nodes]
    numbers = {name: str(number) for number, name in enumerate(dict.fromkeys(names))}
    return f"{code.code}\n{' '.join(numbers[name] for name in names)}" if any(names) else code.code


def _reading(attributes: Sequence[fx.Node]) -> Piece:
    """A piece that only returns parameters."""
    graph = fx.Graph()
    graph.output(tuple(graph.placeholder(f"read_{at}") for at in range(len(attributes))))
    return Piece("", fx.GraphModule(nn.Module(), graph), tuple(str(node.target) for node in attributes))


def _owners(graph: fx.Graph, paths: Collection[str]) -> dict[fx.Node, str]:
    """The block of every node that computes, "" for none.  What is made of parameters alone belongs to its readers."""
    owners: dict[fx.Node, str] = {}
    plain = _made_of_attributes(graph)
    for node in reversed(graph.nodes):
        if node.op != "call_function":
            continue
        readers = {owners.get(user, "") for user in node.users}
        if node in plain and len(readers) == 1:
            owners[node] = readers.pop()
        elif op_name(node) == "sp.unshard" and all(user.op == "output" for user in node.users):
            owners[node] = ""  # or the last block would differ from the others by what the caller is given
        else:
            owners[node] = around(module_path(node), paths)
    return owners


def _made_of_attributes(graph: fx.Graph) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr" or (node.all_input_nodes and found.issuperset(node.all_input_nodes)):
            found.add(node)
    return found


def around(path: str, blocks: Collection[str]) -> str:
    """Which of `blocks` the module at `path` is or lies in."""
    parts = path.split(".")
    inside = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((name for name in inside if name in blocks), "")


def ordered(graph: fx.Graph, owners: dict[fx.Node, str]) -> Iterator[tuple[str, list[fx.Node]]]:
    """Blocks whole, the rest as it comes, such that each stands behind what it reads; changes `owners` where needed."""
    import networkx as nx

    order = {node: at for at, node in enumerate(graph.nodes)}
    while circles := [found for found in nx.strongly_connected_components(_quotient(owners)) if len(found) > 1]:
        for circle in circles:
            _break(circle, owners)
    begin: dict[str | fx.Node, int] = {}
    for node, owner in owners.items():
        begin[owner or node] = min(begin.get(owner or node, order[node]), order[node])
    members: dict[str, list[fx.Node]] = {}
    for node in sorted(owners, key=order.__getitem__):
        members.setdefault(owners[node], []).append(node)
    sequence = nx.lexicographical_topological_sort(_quotient(owners), key=begin.__getitem__)
    rest: list[fx.Node] = []
    for vertex in sequence:
        if isinstance(vertex, fx.Node):
            rest.append(vertex)
            continue
        if rest:
            yield "", rest
        yield vertex, members[vertex]
        rest = []
    if rest:
        yield "", rest


def _break(circle: Collection[str | fx.Node], owners: dict[fx.Node, str]) -> None:
    """Something outside lies between parts of a block: it joins the block, unless it is another block."""
    blocks = [vertex for vertex in circle if isinstance(vertex, str)]
    assert blocks, "a graph has no circles"
    for node in list(owners):
        if len(blocks) > 1 and owners[node] in blocks:
            owners[node] = ""
        elif len(blocks) == 1 and node in circle:
            owners[node] = blocks[0]


def _quotient(owners: Mapping[fx.Node, str]) -> nx.DiGraph[str | fx.Node]:
    """The graph with each block contracted to one vertex."""
    import networkx as nx

    quotient: nx.DiGraph[str | fx.Node] = nx.DiGraph()
    for node, owner in owners.items():
        quotient.add_node(owner or node)
        for operand in node.all_input_nodes:
            if operand in owners and (owners[operand] or operand) != (owner or node):
                quotient.add_edge(owners[operand] or operand, owner or node)
    return quotient


def make_piece(path: str, nodes: Sequence[fx.Node]) -> tuple[Piece, list[fx.Node], list[fx.Node]]:
    """A piece, the values that it is to be called with, and those that it returns.

    Names in its code follow from what it computes, so that equal pieces have equal code."""
    inside = set(nodes)
    outside = dict.fromkeys(operand for node in nodes for operand in node.all_input_nodes if operand not in inside)
    attributes = [node for node in outside if node.op == "get_attr"]
    inputs = [node for node in outside if node.op != "get_attr"]
    names = dict.fromkeys(str(node.target) for node in attributes)
    graph = fx.Graph()
    read = {name: graph.placeholder(f"read_{at}") for at, name in enumerate(names)}
    made = {node: read[str(node.target)] for node in attributes}
    made |= {node: graph.placeholder(f"value_{at}") for at, node in enumerate(inputs)}
    for node in nodes:
        args, kwargs = map_arg((node.args, node.kwargs), made.__getitem__)
        made[node] = graph.create_node(node.op, node.target, args, kwargs)
        made[node].meta = dict(node.meta)
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    graph.output(tuple(made[node] for node in results))
    return Piece(path, fx.GraphModule(nn.Module(), graph), tuple(names)), inputs, results
