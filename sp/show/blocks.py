"""Repeated blocks: which nodes of a program repeat, and in which order to print what is left.

    embedding → blocks.0 → blocks.1 → … → blocks.31 → rms_norm        [embedding, Repeat of 32 units, rms_norm]

The outermost instances are tried first; inside of one that does not repeat, the search goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import fx

from sp.program import Program
from sp.show.homes import Home, family_of, find_homes, instance_at, plain_path
from sp.show.naming import Naming
from sp.show.repeats import Repeat, Unit, longest_repeat

if TYPE_CHECKING:  # importing it takes longer than all of sp
    import networkx as nx

Item = fx.Node | Repeat


class Blocks:
    """Answers, for one program: which nodes repeat, and in which order to print them."""

    def __init__(self, program: Program, naming: Naming) -> None:
        self.program, self.naming = program, naming
        self.homes = find_homes(program.graph)
        self.order = {node: index for index, node in enumerate(program.graph.nodes)}

    def arrange(self, nodes: Sequence[fx.Node], depth: int = 0) -> list[Item]:
        """Nodes and repeats such that everything stands behind what it reads.  `depth`: of homes, already entered."""
        return _sorted(self._found(nodes, depth), self.order)

    def unit(self, home: Home, nodes: Sequence[fx.Node]) -> Unit:
        """The unit made of the nodes of one instance."""
        position = {node: str(index) for index, node in enumerate(nodes)}
        outside: list[fx.Node] = []

        def refer(operand: fx.Node) -> str:
            if operand not in position:
                outside.append(operand)
            return f"%{position.get(operand, 'outside')}"

        form = tuple(self._form(node, home, refer) for node in nodes)
        return Unit((home,), tuple(nodes), form, tuple(outside))

    def _form(self, node: fx.Node, home: Home, refer: object) -> str:
        """Everything about a node but the names: of its operands, and of the instance that it stands in."""
        target = str(node.target).removeprefix("model.").removeprefix(f"{plain_path(home)}.")
        operands = fx.node.map_arg((node.args, node.kwargs), refer)  # type: ignore[arg-type]
        kind = self.naming.type(node.meta.get("val"))
        return f"{node.op} {target} {operands} {kind} {self.program.placements.get(node.name)}"

    def _found(self, nodes: Sequence[fx.Node], depth: int) -> Iterator[Item]:
        families: dict[Home, dict[Home, list[fx.Node]]] = {}
        for node in nodes:
            home = self.homes[node]
            at = instance_at(home, depth)
            if at is None:
                yield node
            else:
                families.setdefault(family_of(home, at), {}).setdefault(home[: at + 1], []).append(node)
        for family in families.values():
            for part in self._runs(family):
                if isinstance(part, Repeat):
                    yield part
                else:
                    yield from self._found(family[part], len(part))

    def _runs(self, family: Mapping[Home, Sequence[fx.Node]]) -> Iterator[Home | Repeat]:
        """The instances of one family in the order of their calls, repeats taken together."""
        homes = sorted(family, key=lambda home: self._begin(family[home]))
        if len(homes) == 1:
            yield homes[0]
            return
        units = [self.unit(home, family[home]) for home in homes]
        while units:
            best = longest_repeat(units)
            yield best or units[0].homes[0]
            units = units[len(best.units) * len(best.units[0].homes) if best else 1 :]

    def _begin(self, nodes: Sequence[fx.Node]) -> int:
        """When an instance begins: parameters stand at the top of the graph, wherever they are read."""
        return min((self.order[node] for node in nodes if node.op == "call_function"), default=0)


def _sorted(items: Iterator[Item], order: Mapping[fx.Node, int]) -> list[Item]:
    """The items in graph order, as far as each must stand behind what it reads.

    Contracting a repeat can close a circle: a node outside reads one unit and is read by another.  Such a repeat is
    opened again, which leaves all its nodes to stand for themselves."""
    import networkx as nx

    parts = list(items)
    while True:
        quotient = _quotient(parts)
        circles = [circle for circle in nx.strongly_connected_components(quotient) if len(circle) > 1]
        if not circles:
            break
        opened = {index for circle in circles for index in circle if isinstance(parts[index], Repeat)}
        assert opened, "the graph itself has no circles"
        parts = [
            node
            for index, part in enumerate(parts)
            for node in (part.nodes if isinstance(part, Repeat) and index in opened else (part,))
        ]
    begin = [min((order[node] for node in _members(part) if node.op != "get_attr"), default=0) for part in parts]
    return [parts[index] for index in nx.lexicographical_topological_sort(quotient, key=begin.__getitem__)]


def _quotient(parts: Sequence[Item]) -> nx.DiGraph[int]:
    """The graph with each item contracted to one vertex."""
    import networkx as nx

    owner = {node: index for index, part in enumerate(parts) for node in _members(part)}
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(range(len(parts)))
    for node, index in owner.items():
        for operand in node.all_input_nodes:
            if owner.get(operand, index) != index:
                quotient.add_edge(owner[operand], index)
    return quotient


def _members(part: Item) -> Iterator[fx.Node]:
    return iter((part,)) if isinstance(part, fx.Node) else part.nodes


def attention_forms(program: Program, naming: Naming, nodes: Sequence[fx.Node]) -> list[object]:
    """For each attention node something equal exactly where the modules around them compute the same."""
    blocks = Blocks(program, naming)
    around = {blocks.homes[node]: list[fx.Node]() for node in nodes}
    for node, home in blocks.homes.items():
        for depth in range(len(home) + 1):
            if home[:depth] in around:
                around[home[:depth]].append(node)
    units = {home: blocks.unit(home, members) for home, members in around.items()}
    return [(units[home].form, units[home].nodes.index(node)) for node in nodes for home in (blocks.homes[node],)]
