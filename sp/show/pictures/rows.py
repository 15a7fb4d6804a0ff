"""A graph as rows, one for each value, in the order of `print_program`: repeated blocks folded, and what reads what.

Parameters have no row, nor have their replicas: `sp.replicate_all` stands for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from sp.passes.fxtools import UNKNOWN, module_path, op_name, source_line
from sp.program import Port, Program
from sp.show.blocks import Blocks, Item, Repeat
from sp.show.expressions import Expressions
from sp.show.homes import plain_path
from sp.show.naming import Naming
from sp.show.pictures.reasons import Reasons
from sp.show.words import path_range

MOST_ROWS = 2000  # of a graph in which nothing repeats


@dataclass(frozen=True)
class Row:
    """kind: "input", "value", "attention", "inserted", "gone", "output"; "open" and "close" are the ends of a block.
    reads: numbers of rows above.  depth: in how many blocks.  placement, why, source: empty where there is none."""

    name: str
    kind: str
    type: str = ""
    placement: str = ""
    call: str = ""
    why: str = ""
    source: str = ""
    path: str = ""
    reads: tuple[int, ...] = ()
    depth: int = 0


@dataclass(frozen=True)
class Listing:
    """A program as rows.  nodes: how many the graph has.  left_out: how many rows there would be more."""

    stage: str
    nodes: int
    rows: tuple[Row, ...]
    left_out: int = 0


def captured_rows(captured: Program, program: Program) -> Listing:
    """The graph before the passes; "gone" is what the graph after them, `program`, has no more."""
    left = {_origin(node) for node in program.graph.nodes}
    return _Rows(captured, lambda node: "value" if _origin(node) in left else "gone").listing()


def rewritten_rows(program: Program) -> Listing:
    """The graph after the passes."""
    return _Rows(program, lambda node: "inserted" if op_name(node).startswith("sp.") else "value").listing()


def _origin(node: fx.Node) -> tuple[str, ...]:
    """What a node shares with what the passes made of it."""
    op = op_name(node).removesuffix("_")
    return {"aten.view": "aten.reshape"}.get(op, op), source_line(node), module_path(node)


class _Rows:
    def __init__(self, program: Program, kind: object) -> None:
        self.program, self.kind = program, kind
        self.naming = Naming(program)
        self.replicas = _replicas(program.graph)
        self.expressions = Expressions(program, self.naming, {node: text for node, (text, _) in self.replicas.items()})
        self.blocks = Blocks(program, self.naming)
        self.reasons = Reasons(program, self.naming)
        self.ports = {port.name: port for port in program.inputs}
        self.at: dict[fx.Node, int] = {}
        self.rows: list[Row] = []

    def listing(self) -> Listing:
        self._walk(self.blocks.arrange(list(self.program.graph.nodes)), 0)
        stage = self.program.history[-1].stage if self.program.history else "nothing"
        rows, nodes = tuple(self.rows[:MOST_ROWS]), len(self.program.graph.nodes)
        return Listing(stage, nodes, rows, len(self.rows) - len(rows))

    def _walk(self, items: Sequence[Item], depth: int) -> None:
        for item in items:
            if isinstance(item, Repeat):
                self._repeat(item, depth)
            elif item.op == "output":
                self.rows += self._outputs(item)
            elif not self.expressions.is_inline(item) and op_name(item) != "sp.promise":
                self._add(item, depth)

    def _add(self, node: fx.Node, depth: int) -> None:
        row = self._row(node, depth)
        self.at[node] = len(self.rows)
        self.rows.append(row)

    def _row(self, node: fx.Node, depth: int) -> Row:
        is_input = node.op == "placeholder"
        placement = self.program.placements.get(node.name)
        return Row(
            node.name,
            "input" if is_input else self._kind(node),
            self.naming.type(node.meta.get("val")),
            "" if placement is None else self.naming.text(str(placement)),
            _input(self.ports[str(node.target)]) if is_input else self.expressions.call(node),
            self.reasons.why(node),
            _source(node),
            module_path(node),
            self._reads(node.all_input_nodes),
            depth,
        )

    def _kind(self, node: fx.Node) -> str:
        name = op_name(node)
        if name == "sp.attention" or "scaled_dot_product" in name or "flex_attention" in name:
            return "attention"
        assert callable(self.kind)
        return str(self.kind(node))

    def _reads(self, operands: Sequence[fx.Node]) -> tuple[int, ...]:
        found = (self.replicas[node][1] if node in self.replicas else node for node in operands)
        return tuple(dict.fromkeys(self.at[node] for node in found if node in self.at))

    def _outputs(self, node: fx.Node) -> Iterator[Row]:
        values = node.args[0]
        assert isinstance(values, (tuple, list))
        for port, value in zip(self.program.outputs, values, strict=True):
            assert isinstance(value, fx.Node)
            where = "stays on its rank" if port.local else "the same on every rank"
            kind, call = self.naming.type(value.meta.get("val")), self.expressions.argument(value)
            yield Row(port.name, "output", kind, "", f"return {call}", where, reads=self._reads([value]))

    def _repeat(self, repeat: Repeat, depth: int) -> None:
        first, last = repeat.units[0], repeat.units[-1]
        columns = zip(*(unit.homes for unit in repeat.units), strict=True)
        paths = " + ".join(path_range(plain_path(home) for home in column) for column in columns)
        carried = ", ".join(
            f"{initial.name} → {first.nodes[at].name}" for at, initial in sorted(repeat.carried.items())
        )
        note = f"× {len(repeat.units)}" + (f", each hands on {carried}" if carried else "")
        self.rows.append(Row(paths, "open", call=note, depth=depth))
        self._walk(self.blocks.arrange(first.nodes, repeat.depth), depth + 1)
        # What is read further on is of the last unit, whose nodes are those of the first one, one by one.
        self.at |= {old: self.at[new] for old, new in zip(last.nodes, first.nodes, strict=True) if new in self.at}
        self.replicas |= {
            old: self.replicas[new] for old, new in zip(last.nodes, first.nodes, strict=True) if new in self.replicas
        }
        inside = set(last.nodes)
        read = [at for at, node in enumerate(last.nodes) if any(user not in inside for user in node.users)]
        renamed = ", ".join(
            f"{first.nodes[at].name} is {last.nodes[at].name}" for at in read if last.nodes[at] in self.at
        )
        self.rows.append(Row(paths, "close", call=f"of the last one: {renamed}" if renamed else "", depth=depth))


def _source(node: fx.Node) -> str:
    line = "" if node.op == "placeholder" else source_line(node)
    return "" if line == UNKNOWN else line


def _input(port: Port) -> str:
    form = "local input" if port.local else "input"
    return form if port.dim is None else f"{form}, sequence in dim {port.dim}"


def _replicas(graph: fx.Graph) -> dict[fx.Node, tuple[str, fx.Node]]:
    """Each item of an `sp.replicate_all` → the path of its parameter, and where it comes from."""
    found: dict[fx.Node, tuple[str, fx.Node]] = {}
    for node in graph.nodes:
        if op_name(node) == "sp.replicate_all":
            parameters = node.args[0]
            assert isinstance(parameters, (list, tuple))
            for item in node.users:
                parameter = parameters[item.args[1]]
                assert isinstance(parameter, fx.Node)
                found[item] = str(parameter.target).removeprefix("model."), node
    return found
