"""What the passes hand to each other: a graph, where the sequence lives in it, and what has been done so far."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import sympy
import torch
from torch import fx

from sp.mask import Band
from sp.strategy import Strategy


@dataclass(frozen=True)
class Replicated:
    """The same value on every rank.  It may still contain the whole sequence: ids, positions, labels."""

    def __str__(self) -> str:
        return "replicated"


@dataclass(frozen=True)
class Sharded:
    """Spread over the ranks along the sequence, which lives in tensor dim `dim` behind `outer` merged elements.

    The value covers positions `start … start + length - 1` of a sequence of `total` positions.  All but `dim` are
    expressions in the captured size symbols; row-major order makes `(elements outside, sequence, elements inside)`
    invariant under every reshape, so `outer` is all that a merge of dims changes.
    """

    dim: int
    outer: sympy.Expr
    start: sympy.Expr
    length: sympy.Expr
    total: sympy.Expr

    @staticmethod
    def whole(dim: int, total: sympy.Expr) -> Sharded:
        """All positions, in a dim of their own."""
        return Sharded(dim, sympy.Integer(1), sympy.Integer(0), total, total)

    def __str__(self) -> str:
        outer = "" if self.outer == 1 else f", outer={self.outer}"
        span = "" if self.length == self.total else f", [{self.start}:{self.start + self.length}]"
        return f"sharded(dim {self.dim}{outer}{span})"


@dataclass(frozen=True)
class Partial:
    """Each rank holds its own part of a sum, still to be reduced."""

    op: str = "sum"

    def __str__(self) -> str:
        return f"partial({self.op})"


Placement = Replicated | Sharded | Partial


@dataclass(frozen=True)
class Sequence:
    """The captured sequence: its size symbol and the global lengths for which the capture holds."""

    symbol: sympy.Symbol
    shortest: int
    longest: int | None


@dataclass(frozen=True)
class Port:
    """One tensor that enters or leaves the program.  `dim` is where its sequence lives, None if it has none."""

    name: str
    dim: int | None
    local: bool = False


@dataclass(frozen=True)
class AttentionSite:
    """One rewritten attention, for the report.  Widths are those of one token: heads × head width."""

    node: str
    source: str
    mask: Band
    heads: int
    kv_heads: int
    head_width: int
    value_width: int
    item_bytes: int
    kernel: str
    why: str


@dataclass(frozen=True)
class Insertion:
    """One op that the compiler added to the graph, and the reason."""

    op: str
    value: str
    why: str


@dataclass(frozen=True)
class Note:
    """One line of a program's history: which pass, and what it changed."""

    stage: str
    text: str


@dataclass(frozen=True)
class Program:
    """One model, somewhere between capture and execution.

    graph_module: takes the tensors of `inputs` and returns the tensors of `outputs`, flat; holds the model's own
        parameter objects.  placements: node name → placement, filled by `place`.
    """

    graph_module: fx.GraphModule
    sequence: Sequence
    strategy: Strategy
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    placements: Mapping[str, Placement] = field(default_factory=dict[str, Placement])
    attentions: tuple[AttentionSite, ...] = ()
    insertions: tuple[Insertion, ...] = ()
    history: tuple[Note, ...] = ()

    @property
    def graph(self) -> fx.Graph:
        return self.graph_module.graph

    def fork(self) -> Program:
        """The same program over a graph of its own; parameters stay shared."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, {}))
        return replace(self, graph_module=fx.GraphModule(self.graph_module, graph))

    def note(self, stage: str, text: str) -> Program:
        return replace(self, history=(*self.history, Note(stage, text)))

    def digest(self) -> str:
        """A hash of everything that all ranks must agree on."""
        nested = (module.graph for module in self.graph_module.modules() if isinstance(module, fx.GraphModule))
        graphs = "\n".join(str(graph) for graph in nested)  # itself, and the bodies of no_grad and autocast regions
        text = f"{torch.__version__}\n{self.strategy}\n{self.inputs}\n{self.outputs}\n{graphs}"
        return hashlib.sha256(text.encode()).hexdigest()
