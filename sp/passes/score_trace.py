"""Tracing: the ops of the graph that make a mask, a bias or a changed score → lines of a `Score`.

    index = aten.index(documents, [b, queries])   [B, 1, S, 1]        l0: one dim holds the sequence
    index = aten.index(documents, [b, keys])      [B, 1, 1, S]        l1
    eq    = aten.eq(index, index_1)               [B, 1, S, S]   →    a = eq.Tensor(l0, l1)

Values in which the sequence fills one dim at most stay in the graph, at a cost of O(S), and become leaves.  What fills
a sequence × sequence of scores is not computed there any more, but line by line wherever a tile needs it: the same op
on the same values, so it is what the model wrote.  An op that does not work element by element cannot be traced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import sympy
import torch
from torch import fx

from sp.passes.frames import HEADS, KEYS, QUERIES, Frame, operand_frame, source_frame
from sp.passes.fxtools import (
    expression,
    op_name,
    positional,
    same_size,
    shape,
    tensor,
)
from sp.passes.index_algebra import IndexAlgebra, Opaque, as_number, coordinate, is_condition
from sp.passes.placements import carries_gradients
from sp.passes.score_sources import LeafNode, Number, Size, Source, carries_gradient, descendants, filled, is_stored
from sp.program import Program
from sp.runtime.scores.op_table import has_gradient, is_evaluable, takes_tensors
from sp.score import LOOKUP, SCORE, Argument, Dtype, Leaf, Line, Name, Score, letters


class Untraceable(Exception):
    """This value of an attention's scores is not known tile by tile; `node` is to blame."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


@dataclass
class Tracer:
    """Collects the lines and leaves of one attention.

    score: the node that stands for the scaled scores; None where the attention makes them itself.
    queries, keys: how many there are."""

    program: Program
    algebra: IndexAlgebra
    queries: sympy.Expr
    keys: sympy.Expr
    score: fx.Node | None = None
    lines: list[Line] = field(default_factory=list[Line])
    sources: list[Source] = field(default_factory=list[Source])
    known: dict[tuple[fx.Node, Frame], Name] = field(default_factory=dict[tuple[fx.Node, Frame], Name])
    numbers: dict[Source, Name] = field(default_factory=dict[Source, Name])

    def __post_init__(self) -> None:
        self.gradients = dict[fx.Node, bool]()
        self.scored = descendants(self.score)

    @property
    def banded(self) -> bool:
        """Whether the queries are of a sequence, so that a band can compare their positions with the keys'."""
        return self.program.holds_sequence(self.queries)

    def value(self, node: fx.Node, frame: Frame) -> Name:
        """The value of `node`, whose dims are the axes of `frame`, by name; raises Untraceable."""
        key = node, frame
        if key not in self.known:
            self.known[key] = self._trace(node, frame)
        return self.known[key]

    def line(self, op: str, *arguments: Argument, **options: Argument) -> Name:
        """A new line, `op(arguments, options)`."""
        name = Name(letters(len(self.lines)))
        self.lines.append(Line(name.text, op, arguments, tuple(options.items())))
        return name

    def finish(self, **roles: Name | None) -> tuple[Score, tuple[Source, ...]]:
        """The score whose parts have these names, of the lines and leaves that they need, and those leaves."""
        named = {role: name.text for role, name in roles.items() if name is not None}
        score = Score((), tuple(self.lines), **named)
        reached = score.reach(list(named.values()))
        places = [place for place in range(len(self.sources)) if f"l{place}" in reached]
        kept = tuple(self.sources[place] for place in places)
        return score.only(reached, [source.leaf for source in kept], places), kept

    def _trace(self, node: fx.Node, frame: Frame) -> Name:
        if node is self.score:
            return Name(SCORE)
        if node in self.scored:
            return self._computed(node, frame)
        if position := self._position(node, frame):
            return position
        held = sum(map(self.program.holds_sequence, shape(node)))
        # Where a sequence has met a parameter, values are spread over the ranks from there on; leaves are not.
        if is_stored(node) or held == 0 or (held == 1 and not self._trains(node)):
            return self._leaf(node, frame)
        return self._computed(node, frame)

    def _position(self, node: fx.Node, frame: Frame) -> Name | None:
        """`i` or `j`, where that is what the algebra finds this value to be."""
        if node.meta["val"].dtype != torch.int64:
            return None
        try:
            found = self.algebra.value(node)
        except Opaque:
            return None
        for axis, name in ((QUERIES, "i"), (KEYS, "j")):
            if axis in frame and not is_condition(found) and as_number(found) == coordinate(frame.index(axis)):
                return Name(name)
        return None

    def _leaf(self, node: fx.Node, frame: Frame) -> Name:
        totals = {QUERIES: self.queries, KEYS: self.keys}
        form = ""
        for size, axis in zip(shape(node), frame, strict=True):
            if axis in totals and not same_size(size, totals[axis]):
                raise Untraceable(node, f"it has {size} of {totals[axis]} {'queries' if axis == QUERIES else 'keys'}")
            if axis not in totals and self.program.holds_sequence(size):
                raise Untraceable(node, "the sequence fills a dim that is neither the queries nor the keys")
            if axis is not None and axis in totals:
                form += "q" if axis == QUERIES else "k"
        form = "qk" if set(form) == {"q", "k"} else form
        return self.source(LeafNode(node, frame, Leaf(form, self._trains(node))))

    def _trains(self, node: fx.Node) -> bool:
        return carries_gradient(node, self.gradients)

    def source(self, source: Source) -> Name:
        if source not in self.numbers:
            self.numbers[source] = Name(f"l{len(self.sources)}")
            self.sources.append(source)
        return self.numbers[source]

    def _computed(self, node: fx.Node, frame: Frame) -> Name:
        name = op_name(node).removeprefix("aten.")
        if name in _SAME:
            return self.value(cast(fx.Node, node.args[0]), frame)
        if (shown := source_frame(node, frame)) is not None:
            return self.value(cast(fx.Node, node.args[0]), shown)
        if name in _CASTS:
            self._check_gradient(node, _CAST)
            return self.line(_CAST, self.value(cast(fx.Node, node.args[0]), frame), dtype=_dtype(node))
        if (amount := filled(node)) is not None:
            return self.source(Number(amount, node.meta["val"].dtype))
        if name in ("tril", "triu"):
            return self._triangle(node, frame, upper=name == "triu")
        if (picked := _picked(node, name)) is not None:
            return self._lookup(node, frame, *picked)
        return self._elementwise(node, frame)

    def _elementwise(self, node: fx.Node, frame: Frame) -> Name:
        op = str(node.target).removeprefix("aten.")
        if any(isinstance(argument, fx.Node) and tensor(argument) is None for argument in node.args):
            op = op.replace(".Scalar", ".Tensor")  # a size becomes a leaf
        if not is_evaluable(op):
            raise Untraceable(node, f"{op_name(node)} does not work element by element")
        for argument, place in zip(node.args, takes_tensors(op), strict=False):
            if isinstance(argument, fx.Node) and not place:
                raise Untraceable(node, f"{op_name(node)} takes {argument.name}, which differs from call to call")
        self._check_gradient(node, op)
        arguments = [self._argument(argument, node, frame) for argument in node.args]
        options = {key: self._argument(value, node, frame) for key, value in node.kwargs.items()}
        return self.line(op, *arguments, **options)

    def _check_gradient(self, node: fx.Node, op: str) -> None:
        flows = any(operand in self.scored or self._trains(operand) for operand in node.all_input_nodes)
        if flows and carries_gradients(node.meta["val"]) and not has_gradient(op):
            raise Untraceable(node, f"the gradient of {op} in scores is not known")

    def _argument(self, argument: object, node: fx.Node, frame: Frame) -> Argument:
        if isinstance(argument, fx.Node):
            if tensor(argument) is not None:
                return self.value(argument, operand_frame(argument, frame))
            if not isinstance(argument.meta["val"], (int, torch.SymInt)):
                raise Untraceable(node, f"it computes with {argument.name}, a fraction of a size")
            size = expression(argument.meta["val"])
            return int(size) if size.is_Integer else self.source(Size(size))
        if isinstance(argument, str):
            return Dtype(argument)
        if argument is None or isinstance(argument, (int, float)):
            return argument
        raise Untraceable(node, f"{op_name(node)} takes {argument!r}")

    def _triangle(self, node: fx.Node, frame: Frame, *, upper: bool) -> Name:
        source, diagonal = positional(node)[:2]
        value = self.value(cast(fx.Node, source), frame)
        row, column = (_axis_position(axis, node) for axis in frame[-2:])
        if not isinstance(diagonal, int):
            raise Untraceable(node, "its diagonal differs from call to call")
        away = self.line("sub.Tensor", column, row)
        kept = self.line("ge.Scalar" if upper else "le.Scalar", away, diagonal)
        if node.meta["val"].dtype == torch.bool:
            return self.line("logical_and.default", kept, value)
        return self.line("where.ScalarOther", kept, value, 0)

    def _lookup(self, node: fx.Node, frame: Frame, table: fx.Node, index: fx.Node) -> Name:
        """`embedding(table, index)`: the table's columns are the heads."""
        if len(shape(table)) != 2 or any(map(self.program.holds_sequence, shape(table))):
            raise Untraceable(node, f"it looks up {table.name} of shape {shape(table)}")
        if frame[-1] not in (HEADS, None) or HEADS in frame[:-1]:
            raise Untraceable(node, f"the columns of the table {table.name} are not the heads")
        place = self.value(index, operand_frame(index, frame[:-1]))
        leaf = self.source(LeafNode(table, (None, None), Leaf("table", self._trains(table))))
        return self._without_padding(node, self.line(LOOKUP, leaf, place), place)

    def _without_padding(self, node: fx.Node, found: Name, place: Name) -> Name:
        """Of `embedding`, the row `padding_idx` gets no gradient; two other options are no sum over its places."""
        if op_name(node) != "aten.embedding" or not self._trains(node):
            return found
        _, _, padding, by_frequency, sparse = positional(node)
        if by_frequency or sparse:
            raise Untraceable(node, "its gradient is sparse or scaled by how often an index occurs")
        if not isinstance(padding, int) or padding < 0:
            return found
        trains = self.line("ne.Scalar", place, padding)
        return self.line("where.self", trains, found, self.line("detach.default", found))


_CAST = "_to_copy.default"
_SAME = frozenset({"clone", "contiguous", "alias", "lift_fresh_copy"})
_CASTS = frozenset({"to", "_to_copy", "type_as"})


def _picked(node: fx.Node, name: str) -> tuple[fx.Node, fx.Node] | None:
    """The table and the index of `embedding(table, index)` and of `table[index]`."""
    if name == "embedding":
        return cast(fx.Node, node.args[0]), cast(fx.Node, node.args[1])
    if name == "index" and len(indices := cast(list[object], node.args[1])) == 1 and isinstance(indices[0], fx.Node):
        return cast(fx.Node, node.args[0]), indices[0]
    return None


def _dtype(node: fx.Node) -> Dtype:
    return Dtype(str(node.meta["val"].dtype).removeprefix("torch."))


def _axis_position(axis: int | None, node: fx.Node) -> Name:
    if axis not in (QUERIES, KEYS):
        raise Untraceable(node, "its triangle is not one of queries and keys")
    return Name("i" if axis == QUERIES else "j")
