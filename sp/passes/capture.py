"""Capture: an `nn.Module` and one call of it → a Program over `torch.export`'s graph, any batch, any sequence length.

    model(ids, labels=ids)  →  input_ids: i64[B, S], labels: i64[B, S]
                               embedding = aten.embedding(weight, input_ids)         f32[B, S, D]
                               …
                               return (loss, logits)

The model is traced with example tensors of our own: torch.export merges the same tensor passed twice
(`model(ids, labels=ids)`) into one input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch
from torch import fx, nn
from torch.export import ExportedProgram

from sp.errors import InputError, UnsupportedModelError
from sp.passes.call import Call, Outputs
from sp.passes.export import Axes, Lengths, export
from sp.passes.fxtools import shape
from sp.passes.modes import Watch
from sp.passes.witness import Witness, refuse_unreal
from sp.program import LENGTH_CARRIER, Note, Port, Program
from sp.program import Sequence as SequenceSize
from sp.strategy import Strategy

SequenceDim = int | Mapping[str, int]


class _Flat(nn.Module):
    """The model with one flat list of tensors in and one out, whatever its signature and output class."""

    def __init__(self, model: nn.Module, call: Call, outputs: Outputs) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.outputs = outputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.call.rebuild(tensors[: len(self.call.names)])
        with Watch(), Witness(self.model) as witness:
            results = self.outputs.flatten(self.model(*args, **kwargs))
            witness.results(results)
        return results


def sequence_dims(call: Call, tensors: Sequence[torch.Tensor], sequence_dim: SequenceDim) -> list[int | None]:
    """Which dim of each input holds a sequence, None if none does.

    One number for all inputs leaves out those that have no such dim, and those that have one element there, as a number
    for each row has."""
    dims: list[int | None] = []
    for name, tensor in zip(call.names, tensors, strict=True):
        dim = sequence_dim.get(name) if isinstance(sequence_dim, Mapping) else sequence_dim
        if isinstance(sequence_dim, int) and not -tensor.ndim <= sequence_dim < tensor.ndim:
            dim = None
        if dim is not None and not -tensor.ndim <= dim < tensor.ndim:
            raise InputError(f"sequence_dim {dim} of {name!r} is out of range for shape {tuple(tensor.shape)}")
        dims.append(None if dim is None else dim % tensor.ndim)
    _check_names(call, sequence_dim)
    longer = any(dim is not None and tensor.shape[dim] > 1 for tensor, dim in zip(tensors, dims, strict=True))
    if not isinstance(sequence_dim, int) or not longer:
        return dims
    return [None if dim is None or tensor.shape[dim] == 1 else dim for tensor, dim in zip(tensors, dims, strict=True)]


def _check_names(call: Call, sequence_dim: SequenceDim) -> None:
    unknown = set(sequence_dim) - set(call.names) if isinstance(sequence_dim, Mapping) else set()
    if unknown:
        raise InputError(
            f"sequence_dim names {sorted(unknown)}, which this call does not pass",
            needed=f"names among: {', '.join(call.names)}",
        )


def sequence_lengths(call: Call, tensors: Sequence[torch.Tensor], dims: Sequence[int | None]) -> tuple[int, ...]:
    """The lengths of the sequences among the inputs, in their order.  Inputs of one length share a sequence."""
    lengths = [tensor.shape[dim] for tensor, dim in zip(tensors, dims, strict=True) if dim is not None]
    if not lengths:
        raise InputError(
            f"no input has a sequence dim: {_shapes(call, tensors)}",
            remedy="pass sequence_dim={'input_ids': 1, …} naming the inputs that hold the sequence",
        )
    return tuple(dict.fromkeys(lengths))


def _shapes(call: Call, tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(call.names, tensors, strict=True))


def capture(
    model: nn.Module,
    call: Call,
    tensors: Sequence[torch.Tensor],
    *,
    sequence_dim: SequenceDim,
    strategy: Strategy,
    length: int | None = None,
    local_inputs: bool = False,
) -> tuple[Program, Outputs]:
    """Trace `model` once.  `length`: the global length where `tensors` are local shards.

    Raises UnsupportedModelError when the model cannot be traced or fixes the sequence length, InputError when the
    call does not say where its sequences are."""
    given = _Given.of(call, tensors, sequence_dim, length, local_inputs)
    outputs = Outputs()
    exported, ranges = _exported(model, call, outputs, given)
    for found, lengths in zip(given.lengths, ranges, strict=True):
        if not lengths.holds(found):
            raise InputError(
                f"one graph of {type(model).__name__} does not hold for a sequence of {found} tokens",
                needed=f"{lengths.shortest} … {lengths.longest or '∞'} tokens",
            )
    module = _flat_module(exported, given.names)
    refuse_unreal(module)
    symbols = _sequence_symbols(module, given)
    sequences = tuple(
        SequenceSize(symbol, one.shortest, one.longest) for symbol, one in zip(symbols, ranges, strict=True)
    )
    ports = tuple(Port(name, None) for name in outputs.names)
    text = f"{len(module.graph.nodes)} nodes by torch.export; sequence {', '.join(map(str, symbols))}"
    history = (*(Note("call", addition) for addition in call.added), Note("capture", text))
    return Program(module, sequences, strategy, given.ports, ports, history=history), outputs


def _exported(
    model: nn.Module, call: Call, outputs: Outputs, given: _Given
) -> tuple[ExportedProgram, tuple[Lengths, ...]]:
    batches = [batch_dim(tensor, dim) for tensor, dim in zip(given.tensors, given.dims, strict=True)]
    axes = Axes(given.dims, given.which, batches)
    try:
        return export(_Flat(model, call, outputs), model, given.examples, axes)
    except UnsupportedModelError as error:
        if len(given.lengths) == 1:
            raise
        raise InputError(
            f"the inputs hold sequences of different lengths ({_shapes(call, given.tensors)}), and so {error}",
            remedy="pass inputs of one length, or sequence_dim={'input_ids': 1, …} naming those that hold a sequence",
        ) from error


@dataclass(frozen=True)
class _Given:
    """The inputs of the graph to come, which dim of each holds a sequence, and the lengths of all sequences."""

    names: list[str]
    tensors: list[torch.Tensor]
    dims: list[int | None]
    lengths: tuple[int, ...]
    local: bool

    @staticmethod
    def of(
        call: Call, tensors: Sequence[torch.Tensor], sequence_dim: SequenceDim, length: int | None, local: bool
    ) -> _Given:
        dims = sequence_dims(call, tensors, sequence_dim)
        lengths = sequence_lengths(call, tensors, dims)
        if not local:
            return _Given(list(call.names), list(tensors), dims, lengths, local)
        if len(lengths) > 1:
            raise InputError(
                f"inputs='local' with sequences of different lengths: {_shapes(call, tensors)}",
                needed="one sequence",
                remedy="pass the inputs whole, with inputs='global'",
            )
        # Shards cannot tell the global length: an empty tensor of that size brings it.
        length = length or min(lengths)
        names, carrier = [*call.names, LENGTH_CARRIER], torch.empty(length, 0)
        return _Given(names, [*tensors, carrier], [*dims, 0], (length,), local)

    @property
    def which(self) -> list[int]:
        """For each input, the number of its sequence."""
        if self.local:
            return [0] * len(self.tensors)
        pairs = zip(self.tensors, self.dims, strict=True)
        return [0 if dim is None else self.lengths.index(tensor.shape[dim]) for tensor, dim in pairs]

    @property
    def ports(self) -> tuple[Port, ...]:
        places = zip(self.names, self.dims, strict=True)
        return tuple(Port(name, dim, self.local and dim is not None and name != LENGTH_CARRIER) for name, dim in places)

    def examples(self, least: Sequence[int]) -> list[torch.Tensor]:
        """Fresh tensors like the caller's, each at least as long as `least` says of its sequence."""
        made: list[torch.Tensor] = []
        for given, dim, which in zip(self.tensors, self.dims, self.which, strict=True):
            sizes = list(given.shape)
            if dim is not None:
                sizes[dim] = max(self.lengths[which], least[which])
            made.append(torch.empty(sizes, dtype=given.dtype, device=given.device, requires_grad=given.requires_grad))
        return made


def accepts(program: Program, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether every size that a capture took for a constant is what these inputs have, too."""
    placeholders = program.graph.find_nodes(op="placeholder")[: len(tensors)]  # a length carrier follows them
    for node, given in zip(placeholders, tensors, strict=True):
        sizes = zip(shape(node), given.shape, strict=True)
        if any(size.is_Integer and size != found for size, found in sizes):
            return False
    return True


def batch_dim(tensor: torch.Tensor, sequence_dim: int | None) -> int | None:
    """The first dim that is not the sequence's counts as batch, if any.  A batch of 1 is captured as such: torch.export
    proves a symbolic size from 2 on, and models do ask whether it is 1."""
    free = [dim for dim in range(tensor.ndim) if dim != sequence_dim]
    return free[0] if free and sequence_dim is not None else None


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
    for node, dim, which in zip(inputs, given.dims, given.which, strict=True):
        if dim is not None:
            symbol = shape(node)[dim]
            assert isinstance(symbol, sympy.Symbol), f"{node}: the sequence was specialised to {symbol}"
            found.setdefault(which, symbol)
    return [found[which] for which in range(len(given.lengths))]
