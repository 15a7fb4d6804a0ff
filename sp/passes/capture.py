"""Capture: an `nn.Module` and one call of it → a Program over `torch.export`'s graph, any batch, any sequence length.

    model(ids, labels=ids)  →  input_ids: i64[B, S], labels: i64[B, S]
                               embedding = aten.embedding(weight, input_ids)         f32[B, S, D]
                               …
                               return (loss, logits)

The model is traced with example tensors of our own: torch.export merges the same tensor passed twice
(`model(ids, labels=ids)`) into one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
import torch
from torch import fx, nn
from torch.export import ExportedProgram

from sp.errors import InputError, UnsupportedModelError
from sp.passes.assertions import prove_assertions, settle_ranges
from sp.passes.block_masks import OneBlock
from sp.passes.call import Call, Outputs
from sp.passes.constants import refuse_loose, refuse_unreal
from sp.passes.export import Axes, Exported, export
from sp.passes.fxtools import shape
from sp.passes.input_dims import (
    Dims,
    SequenceDim,
    Stretch,
    batch_dim,
    sequence_dims,
    sequence_lengths,
    shapes,
    stretches,
)
from sp.passes.modes import Watch
from sp.passes.witness import Witness
from sp.program import LENGTH_CARRIER, Note, Port, Program
from sp.program import Sequence as SequenceSize
from sp.strategy import Strategy


class _Flat(nn.Module):
    """The model with one flat list of tensors in and one out, whatever its signature and output class."""

    def __init__(self, model: nn.Module, call: Call, outputs: Outputs) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.outputs = outputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.call.rebuild(tensors[: len(self.call.names)])
        with Watch(), OneBlock(), Witness(self.model) as witness:
            results = self.outputs.flatten(self.model(*args, **kwargs), (args, kwargs))
            witness.results(results)
        return results


def capture(
    model: nn.Module,
    call: Call,
    tensors: Sequence[torch.Tensor],
    *,
    sequence_dim: SequenceDim,
    strategy: Strategy,
    length: int | None = None,
    local_inputs: bool = False,
    past: int | None = None,
) -> tuple[Program, Outputs]:
    """Trace `model` once.  length: the global length where `tensors` are local shards.  past: how many tokens of the
    whole sequence the caches among the inputs hold.

    Raises UnsupportedModelError when the model cannot be traced or fixes the sequence length, InputError when the
    call does not say where its sequences are."""
    given = _Given.of(call, tensors, sequence_dim, length, local_inputs, past)
    outputs = Outputs()
    exported = _exported(model, call, outputs, given)
    refuse_loose(exported.program)
    module = _flat_module(exported.program, given.names)
    refuse_unreal(module)
    symbols, name = _sequence_symbols(module, given), type(model).__name__
    ranges = exported.ranges
    if exported.asserting:
        ranges = settle_ranges(exported.program, symbols, ranges, name)
        prove_assertions(module, {symbol: one.shortest for symbol, one in zip(symbols, ranges, strict=True)}, name)
    for found, lengths in zip(given.lengths, ranges, strict=True):
        if not lengths.holds(found):
            raise InputError(
                f"one graph of {name} does not hold for a sequence of {found} tokens",
                needed=f"{lengths.shortest} … {lengths.longest or '∞'} tokens",
            )
    sequences = tuple(
        SequenceSize(symbol, one.shortest, one.longest) for symbol, one in zip(symbols, ranges, strict=True)
    )
    ports = tuple(Port(name, None, kept=kept) for name, kept in zip(outputs.names, outputs.kept, strict=True))
    text = f"{len(module.graph.nodes)} nodes by torch.export; sequence {', '.join(map(str, symbols))}"
    history = (*(Note("call", addition) for addition in call.added), Note("capture", text))
    return Program(module, sequences, strategy, given.ports, ports, history=history), outputs


def _exported(model: nn.Module, call: Call, outputs: Outputs, given: _Given) -> Exported:
    batches = [
        batch_dim(tensor, tuple(held), given.past) for tensor, held in zip(given.tensors, given.held, strict=True)
    ]
    axes = Axes(given.held, batches, grows=given.past is not None)
    try:
        return export(_Flat(model, call, outputs), model, given.examples, axes)
    except UnsupportedModelError as error:
        if len(given.lengths) == 1:
            raise
        raise InputError(
            f"the inputs hold sequences of different lengths ({shapes(call, given.tensors)}), and so {error}",
            remedy="pass inputs of one length, or sequence_dim={'input_ids': 1, …} naming those that hold a sequence",
        ) from error


@dataclass(frozen=True)
class _Given:
    """The inputs of the graph to come, what sequences each holds in which dim, and the lengths of all sequences.

    local: for each input, whether it is this rank's part.  past: how many tokens the caches hold, if there are any."""

    names: list[str]
    tensors: list[torch.Tensor]
    held: list[dict[int, Stretch]]
    lengths: tuple[int, ...]
    local: list[bool]
    past: int | None = None

    @staticmethod
    def of(
        call: Call,
        tensors: Sequence[torch.Tensor],
        sequence_dim: SequenceDim,
        length: int | None,
        local: bool,
        past: int | None,
    ) -> _Given:
        dims = sequence_dims(call, tensors, sequence_dim, past)
        lengths = sequence_lengths(call, tensors, dims, past)
        if past is not None:
            held = stretches(call, tensors, dims, lengths, past)
            return _carried(_Given([*call.names], [*tensors], held, lengths, [k == "local" for k in call.kept], past))
        if not local:
            held = stretches(call, tensors, dims, lengths)
            return _Given([*call.names], [*tensors], held, lengths, [False] * len(tensors))
        _check_local(call, tensors, dims, lengths)
        held = [{dim: Stretch(0) for dim in its} for its in dims]
        return _carried(_Given([*call.names], [*tensors], held, (length or min(lengths),), [bool(its) for its in dims]))

    @property
    def ports(self) -> tuple[Port, ...]:
        places = zip(self.names, self.held, self.local, strict=True)
        return tuple(Port(name, next(iter(held), None), local) for name, held, local in places)

    def examples(self, least: Sequence[int]) -> list[torch.Tensor]:
        """Fresh tensors like the caller's, each at least as long as `least` says of its sequences."""
        made: list[torch.Tensor] = []
        for given, held in zip(self.tensors, self.held, strict=True):
            sizes = list(given.shape)
            for dim, stretch in held.items():
                sizes[dim] = max(self.lengths[stretch.sequence], least[stretch.sequence]) + stretch.more
            made.append(torch.empty(sizes, dtype=given.dtype, device=given.device, requires_grad=given.requires_grad))
        return made


def _carried(given: _Given) -> _Given:
    """Shards cannot tell the global length: an empty tensor of that size brings it."""
    if not any(given.local):
        return given
    carrier = torch.empty(given.lengths[0], 0, device="cpu")
    return replace(
        given,
        names=[*given.names, LENGTH_CARRIER],
        tensors=[*given.tensors, carrier],
        held=[*given.held, {0: Stretch(0)}],
        local=[*given.local, False],
    )


def _check_local(call: Call, tensors: Sequence[torch.Tensor], dims: Sequence[Dims], lengths: tuple[int, ...]) -> None:
    if len(lengths) > 1:
        raise InputError(
            f"inputs='local' with sequences of different lengths: {shapes(call, tensors)}",
            needed="one sequence",
            remedy="pass the inputs whole, with inputs='global'",
        )
    if two := [name for name, its in zip(call.names, dims, strict=True) if len(its) > 1]:
        raise InputError(
            f"inputs='local' with {two[0]!r}, in which two dims hold the sequence",
            needed="one dim for each input",
            remedy="build the mask in the model, from positions or from a number for each token",
        )


def accepts(program: Program, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether every size that a capture took for a constant is what these inputs have, too."""
    placeholders = program.graph.find_nodes(op="placeholder")[: len(tensors)]  # a length carrier follows them
    for node, given in zip(placeholders, tensors, strict=True):
        sizes = zip(shape(node), given.shape, strict=True)
        if any(size.is_Integer and size != found for size, found in sizes):
            return False
    return True


def _flat_module(exported: ExportedProgram, names: Sequence[str]) -> fx.GraphModule:
    """The exported module with plain positional inputs, named as the model's own arguments."""
    module = exported.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node, name in zip(graph.find_nodes(op="placeholder"), names, strict=True):
        node.target = name
        node._rename(name)
    return fx.GraphModule(module, graph)


def _sequence_symbols(module: fx.GraphModule, given: _Given) -> list[sympy.Symbol]:
    """The size of each sequence, as the graph calls it."""
    found: dict[int, sympy.Symbol] = {}
    inputs = module.graph.find_nodes(op="placeholder")
    for node, held in zip(inputs, given.held, strict=True):
        for dim, stretch in held.items():
            symbol = shape(node)[dim]
            if stretch.more == 0:
                if not isinstance(symbol, sympy.Symbol):
                    raise AssertionError(f"{node}: the sequence was specialised to {symbol}")
                found.setdefault(stretch.sequence, symbol)
    return [found[number] for number in range(len(given.lengths))]
