"""What the passes hand to each other: a graph, where the sequence lives in it, and what has been done so far."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

import sympy
import torch
from torch import fx

from sp.devices import without_numbers
from sp.errors import Refusal
from sp.mask import FULL, Band
from sp.score import Score
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

    @property
    def is_whole(self) -> bool:
        """Whether it covers all positions of its sequence."""
        return self.length == self.total

    def can_become(self, other: Sharded) -> bool:
        """Whether moving elements between ranks is all that it takes: the same elements, dealt as another span."""
        return (self.dim, self.outer, self.length) == (other.dim, other.outer, other.length)

    def __str__(self) -> str:
        outer = "" if self.outer == 1 else f", outer={self.outer}"
        span = "" if self.is_whole else f", [{self.start}:{self.start + self.length}]"
        return f"sharded(dim {self.dim}{outer}{span})"


@dataclass(frozen=True)
class Partial:
    """Each rank holds its own part of a sum (or maximum, or minimum), still to be reduced."""

    op: str = "sum"

    def __str__(self) -> str:
        return f"partial({self.op})"


Placement = Replicated | Sharded | Partial


@dataclass(frozen=True)
class Sequence:
    """A captured sequence: its size symbol and the global lengths for which the capture holds."""

    symbol: sympy.Symbol
    shortest: int
    longest: int | None

    def holds(self, length: int) -> bool:
        return self.shortest <= length <= (self.longest or length)


# Inputs that sp adds to those of the caller.
LENGTH_CARRIER = "global_length"  # an empty tensor as long as the whole sequence, where the caller passes shards
NOISE_SEED = "noise_seed"  # what the call's dropouts are drawn from


@dataclass(frozen=True)
class Port:
    """One tensor that enters or leaves the program.  `dim` is where its sequence lives, None if it has none.

    kept: the name of the cache that an output is part of.  total: how many positions the sequence of an output has.
    whole_bytes: of an output that is gathered."""

    name: str
    dim: int | None
    local: bool = False
    kept: str = ""
    total: sympy.Expr | None = field(default=None, repr=False)
    whole_bytes: sympy.Expr | None = field(default=None, repr=False)

    @property
    def is_added(self) -> bool:
        """Whether it is an input of ours, not of the caller."""
        return self.name in (LENGTH_CARRIER, NOISE_SEED)


@dataclass(frozen=True)
class AttentionSite:
    """One rewritten attention, for the report.  queries, keys: how many, as expressions in the sequences' symbols.
    mask: what is known when the graph is made.  score: what happens to scores inside of it, in words for people.
    transport: the strategy's, or "merge" where the queries have no sequence."""

    node: str
    source: str
    mask: Band
    queries: sympy.Expr
    keys: sympy.Expr
    heads: int
    kv_heads: int
    head_width: int
    value_width: int
    item_bytes: int
    kernel: str
    why: str
    score: Score
    words: tuple[str, ...]
    transport: str

    @property
    def scores(self) -> str:
        """`causal & padding (attention_mask)`: all that decides what a query sees, and how much."""
        shown = [] if self.words and self.mask == FULL else [str(self.mask)]
        return " & ".join([*shown, *self.words])


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
    sequences: one for each length among the inputs, the first one's first.  refused: node name → what a pass could not
        prove of it; `place` adds its own and raises them all.  found: what `place` has found out about the nodes of
        this very graph, for `localize`; a copy of the graph has other nodes, and none of it.
    """

    graph_module: fx.GraphModule
    sequences: tuple[Sequence, ...]
    strategy: Strategy
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    placements: Mapping[str, Placement] = field(default_factory=dict[str, Placement])
    attentions: tuple[AttentionSite, ...] = ()
    insertions: tuple[Insertion, ...] = ()
    history: tuple[Note, ...] = ()
    refused: Mapping[str, Refusal] = field(default_factory=dict[str, Refusal])
    found: object = field(default=None, compare=False, repr=False)

    @property
    def sequence(self) -> Sequence:
        return self.sequences[0]

    @property
    def symbols(self) -> Set[sympy.Basic]:
        """The sizes of the sequences.  No dim contains them but those in which a sequence lives."""
        return frozenset[sympy.Basic](sequence.symbol for sequence in self.sequences)

    def holds_sequence(self, size: sympy.Expr) -> bool:
        return not self.symbols.isdisjoint(size.free_symbols)

    def is_length(self, size: sympy.Expr) -> bool:
        """Whether `size` counts the positions of one sequence: S, S - 1, S + 16, or of several that were joined."""
        factors = {term: factor for term, factor in size.as_coefficients_dict().items() if term != 1}
        joined = all(sympy.Integer(1) <= factor == int(factor) for factor in factors.values())
        return bool(factors) and factors.keys() <= self.symbols and joined

    @property
    def graph(self) -> fx.Graph:
        return self.graph_module.graph

    def fork(self) -> Program:
        """The same program over a graph of its own; parameters stay shared."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, {}))
        return replace(self, graph_module=fx.GraphModule(self.graph_module, graph), found=None)

    def refuse(self, refused: Mapping[str, Refusal]) -> Program:
        return replace(self, refused={**self.refused, **refused})

    def note(self, stage: str, text: str) -> Program:
        return replace(self, history=(*self.history, Note(stage, text)))

    def digest(self) -> str:
        """A hash of everything that all ranks must agree on."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def text(self) -> str:
        """What that is."""
        nested = (module.graph for module in self.graph_module.modules() if isinstance(module, fx.GraphModule))
        graphs = "\n".join(str(graph) for graph in nested)  # itself, and the bodies of no_grad and autocast regions
        return without_numbers(f"{torch.__version__}\n{self.strategy}\n{self.inputs}\n{self.outputs}\n{graphs}")
