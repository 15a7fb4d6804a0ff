"""A program as readable text, at any stage: one line per value, repeated blocks folded.

    after localize: striped · 149 nodes · S sequence, at least 2 · B batch

    shard           i64[B, S]      sharded(dim 1)  = sp.shard(ids_BS, 1, 1, 0, S, S, striped, sp)
    embedding       f32[B, S, 32]  sharded(dim 1)  = embedding(replicate, shard)
    ╭ blocks.{0…31} × 32, carrying embedding → add_3
    │ replicate_1   f32[32]        replicated      = sp.replicate(blocks.0.attention_norm.weight, sp)
    …
    ╰ of the last one: add_3 is add_127

Types are those of the global values; a placement says along which dim a rank holds its part.  No rank appears.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from sp.program import Program
from sp.show.blocks import Blocks, Item, Repeat
from sp.show.expressions import Expressions
from sp.show.homes import plain_path
from sp.show.naming import Naming
from sp.show.words import path_range, table

_Row = tuple[str, str, str, str]


def print_program(program: Program) -> str:
    """`program` as text, signed by the stage that made it.

    >>> print(sp.show.print_program(pmodel.report().captured))
    after capture: striped · … nodes · S sequence, …
    …
    embedding…
    …
    """
    return _Printer(program).text()


class _Printer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.naming = Naming(program)
        self.expressions = Expressions(program, self.naming)
        self.blocks = Blocks(program, self.naming)

    def text(self) -> str:
        lines = list(self._lines(self.blocks.arrange(list(self.program.graph.nodes)), ""))
        rows = iter(table([line for line in lines if not isinstance(line, str)]).splitlines())
        body = [line if isinstance(line, str) else next(rows) for line in lines]
        return "\n".join([self._head(), "", *body])

    def _head(self) -> str:
        sequence, strategy = self.program.sequence, self.program.strategy
        stage = self.program.history[-1].stage if self.program.history else "nothing"
        bounds = f"at least {sequence.shortest}" + (f", at most {sequence.longest}" if sequence.longest else "")
        nodes = len(self.program.graph.nodes)
        return f"after {stage}: {strategy.name} · {nodes} nodes · S sequence, {bounds} · B batch"

    def _lines(self, items: list[Item], indent: str) -> Iterator[_Row | str]:
        """Rows of the table, and between them the lines that open and close a block."""
        for item in items:
            if isinstance(item, Repeat):
                yield from self._repeat(item, indent)
            elif item.op == "output":
                yield from self._outputs(item)
            elif not self.expressions.is_inline(item):
                yield self._row(item, indent)

    def _row(self, node: fx.Node, indent: str) -> _Row:
        placement = self.program.placements.get(node.name)
        described = "" if placement is None else self.naming.text(str(placement))
        call = self._input(node) if node.op == "placeholder" else f"= {self.expressions.call(node)}"
        return f"{indent}{node.name}", self.naming.type(node.meta.get("val")), described, call

    def _input(self, node: fx.Node) -> str:
        # By target: torch.fx makes a name like `input`, which Python has too, `input_1`.
        port = next(port for port in self.program.inputs if port.name == node.target)
        form = "local input" if port.local else "input"
        return form if port.dim is None else f"{form}, sequence in dim {port.dim}"

    def _outputs(self, node: fx.Node) -> Iterator[_Row]:
        values = node.args[0]
        assert isinstance(values, (tuple, list))
        for port, value in zip(self.program.outputs, values, strict=True):
            assert isinstance(value, fx.Node)
            kind = self.naming.type(value.meta.get("val"))
            yield f"return {port.name}", kind, "local" if port.local else "", f"= {self.expressions.argument(value)}"

    def _repeat(self, repeat: Repeat, indent: str) -> Iterator[_Row | str]:
        first, last = repeat.units[0], repeat.units[-1]
        columns = zip(*(unit.homes for unit in repeat.units), strict=True)
        paths = " + ".join(path_range(plain_path(home) for home in column) for column in columns)
        carried = [f"{initial.name} → {first.nodes[at].name}" for at, initial in sorted(repeat.carried.items())]
        yield f"{indent}╭ {paths} × {len(repeat.units)}" + (f", carrying {', '.join(carried)}" if carried else "")
        yield from self._lines(self.blocks.arrange(first.nodes, repeat.depth), f"{indent}│ ")
        inside = set(last.nodes)
        read = [at for at, node in enumerate(last.nodes) if any(user not in inside for user in node.users)]
        results = ", ".join(f"{first.nodes[at].name} is {last.nodes[at].name}" for at in read)
        yield f"{indent}╰ of the last one: {results}" if results else f"{indent}╰"
