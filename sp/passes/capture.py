"""Capture: an `nn.Module` and one call of it → a Program over `torch.export`'s graph, any batch, any sequence length.

    model(ids, labels=ids)  →  input_ids: i64[B, S], labels: i64[B, S]
                               embedding = aten.embedding(weight, input_ids)         f32[B, S, D]
                               …
                               return (loss, logits)

The model is traced with example tensors of our own: torch.export merges the same tensor passed twice
(`model(ids, labels=ids)`) into one input and specialises sizes of 0 and 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sympy
import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from sp.errors import InputError, UnsupportedModelError
from sp.passes.call import Call
from sp.passes.fxtools import shape
from sp.program import Note, Port, Program, Sequence as SequenceSize
from sp.strategy import Strategy

LENGTH_CARRIER = "global_length"
SequenceDim = int | Mapping[str, int]


@dataclass
class Outputs:
    """How the model's own output is put together again, recorded while it is traced."""

    spec: pytree.TreeSpec | None = None
    constants: list[tuple[object] | None] = field(default_factory=list[tuple[object] | None])
    names: list[str] = field(default_factory=list[str])

    def flatten(self, output: object) -> tuple[torch.Tensor, ...]:
        paths, self.spec = pytree.tree_flatten_with_path(output)
        self.constants = [None if isinstance(leaf, torch.Tensor) else (leaf,) for _, leaf in paths]
        self.names = [_output_name(path) for path, leaf in paths if isinstance(leaf, torch.Tensor)]
        for path, leaf in paths:
            if not isinstance(leaf, (torch.Tensor, bool, int, float, str, type(None))):
                raise UnsupportedModelError(
                    f"the model returns a {type(leaf).__name__} as {_output_name(path)!r}",
                    needed="tensors and constants in containers that torch's pytree knows",
                    remedy="register the class with torch.utils._pytree, or leave it out (use_cache=False for caches)",
                )
        return tuple(leaf for _, leaf in paths if isinstance(leaf, torch.Tensor))

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> object:
        assert self.spec is not None
        supply = iter(tensors)
        leaves = [next(supply) if constant is None else constant[0] for constant in self.constants]
        return pytree.tree_unflatten(leaves, self.spec)


def _output_name(path: Sequence[object]) -> str:
    keys = [str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key)))) for key in path]
    return "_".join(keys) or "output"


class _Flat(nn.Module):
    """The model with one flat list of tensors in and one out, whatever its signature and output class."""

    def __init__(self, model: nn.Module, call: Call, outputs: Outputs) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.outputs = outputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.call.rebuild(tensors[: len(self.call.names)])
        return self.outputs.flatten(self.model(*args, **kwargs))


def sequence_dims(call: Call, tensors: Sequence[torch.Tensor], sequence_dim: SequenceDim) -> list[int | None]:
    """Which dim of each input holds the sequence; InputError when the lengths disagree."""
    dims: list[int | None] = []
    for name, tensor in zip(call.names, tensors, strict=True):
        dim = sequence_dim.get(name) if isinstance(sequence_dim, Mapping) else sequence_dim
        if isinstance(sequence_dim, int) and tensor.ndim <= sequence_dim:
            dim = None
        if dim is not None and not -tensor.ndim <= dim < tensor.ndim:
            raise InputError(f"sequence_dim {dim} of {name!r} is out of range for shape {tuple(tensor.shape)}")
        dims.append(None if dim is None else dim % tensor.ndim)
    _check_names(call, sequence_dim)
    return dims


def _check_names(call: Call, sequence_dim: SequenceDim) -> None:
    unknown = set(sequence_dim) - set(call.names) if isinstance(sequence_dim, Mapping) else set()
    if unknown:
        raise InputError(
            f"sequence_dim names {sorted(unknown)}, which this call does not pass",
            needed=f"names among: {', '.join(call.names)}",
        )


def common_length(call: Call, tensors: Sequence[torch.Tensor], dims: Sequence[int | None]) -> int:
    """The length along the sequence dims, which all inputs must share."""
    lengths = {
        name: tensor.shape[dim]
        for name, tensor, dim in zip(call.names, tensors, dims, strict=True)
        if dim is not None
    }
    if len(set(lengths.values())) != 1:
        raise InputError(
            f"the inputs do not share one sequence length: {lengths or 'no input has a sequence dim'}",
            remedy="pass sequence_dim={'input_ids': 1, …} naming the inputs that hold the sequence",
        )
    return next(iter(lengths.values()))


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
    call does not say where its sequence is."""
    dims = sequence_dims(call, tensors, sequence_dim)
    found = common_length(call, tensors, dims)
    batched = [batch_dim(tensor, dim) for tensor, dim in zip(tensors, dims, strict=True)]
    examples = _examples(tensors, dims, batched, length or found)
    names = list(call.names)
    if local_inputs:  # shards cannot tell the global length: an empty tensor of that size brings it
        examples.append(torch.empty(length or found, 0))
        names, dims, batched = [*names, LENGTH_CARRIER], [*dims, 0], [*batched, None]
    outputs = Outputs()
    exported, size = _export(_Flat(model, call, outputs), examples, dims, batched)
    module = exported.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    module = _flat_module(module, names)
    symbol = _sequence_symbol(module, dims)
    sequence = SequenceSize(symbol, *size)
    inputs = tuple(
        Port(name, dim, local_inputs and dim is not None and name != LENGTH_CARRIER)
        for name, dim in zip(names, dims, strict=True)
    )
    ports = tuple(Port(name, None) for name in outputs.names)
    nodes = len(module.graph.nodes)
    history = (Note("capture", f"{nodes} nodes by torch.export; sequence {symbol}"), *(Note("call", a) for a in call.added))
    return Program(module, sequence, strategy, inputs, ports, history=history), outputs


def batch_dim(tensor: torch.Tensor, sequence_dim: int | None) -> int | None:
    """The first dim that is not the sequence's counts as batch, if any."""
    free = [dim for dim in range(tensor.ndim) if dim != sequence_dim]
    return free[0] if free and sequence_dim is not None else None


def _examples(
    tensors: Sequence[torch.Tensor], dims: Sequence[int | None], batched: Sequence[int | None], length: int
) -> list[torch.Tensor]:
    """Fresh tensors like the caller's, with at least two sequences in the batch: size 1 would be specialised."""
    batches = {tensor.shape[dim] for tensor, dim in zip(tensors, batched, strict=True) if dim is not None}
    grow = batches == {1}
    examples: list[torch.Tensor] = []
    for tensor, dim, batch_dim in zip(tensors, dims, batched, strict=True):
        sizes = list(tensor.shape)
        if dim is not None:
            sizes[dim] = length
        if batch_dim is not None and grow:
            sizes[batch_dim] = 2
        examples.append(torch.empty(sizes, dtype=tensor.dtype, device=tensor.device, requires_grad=tensor.requires_grad))
    return examples


def _export(
    flat: _Flat, examples: list[torch.Tensor], dims: Sequence[int | None], batched: Sequence[int | None]
) -> tuple[ExportedProgram, tuple[int, int | None]]:
    """Export with a symbolic length, narrowing its range until torch.export agrees.

    Returns the program and the (shortest, longest) length for which it holds."""
    shortest, longest = 2, None
    for _ in range(3):
        sizes = Dim("S", min=shortest, max=longest)
        shapes = tuple(_dynamic(example, dim, batch, sizes) for example, dim, batch in zip(examples, dims, batched, strict=True))
        try:
            with torch.enable_grad():
                exported = torch.export.export(flat, tuple(examples), dynamic_shapes=(shapes,), strict=False)
            return exported, (shortest, longest)
        except UnsupportedModelError:
            raise
        except Exception as error:
            suggested = _suggested_range(str(error))
            if suggested is None:
                raise _untraceable(error, flat.model) from error
            shortest, longest = max(shortest, suggested[0]), suggested[1]
    raise UnsupportedModelError("torch.export finds no range of sequence lengths for which one graph holds")


def _dynamic(example: torch.Tensor, dim: int | None, batch: int | None, sizes: object) -> dict[int, object]:
    dynamic: dict[int, object] = {}
    if dim is not None:
        dynamic[dim] = sizes
    if batch is not None and example.shape[batch] > 1:
        dynamic[batch] = Dim(f"B{example.shape[batch]}")
    return dynamic


def _suggested_range(message: str) -> tuple[int, int | None] | None:
    """The range that torch.export suggests for S, None if it suggests none (or fixes S)."""
    match = re.search(r"^\s*S = Dim\('S'(?:, min=(\d+))?(?:, max=(\d+))?\)", message, re.MULTILINE)
    if match is None:
        return None
    low, high = match.groups()
    return int(low or 2), int(high) if high else None


def _untraceable(error: Exception, model: nn.Module) -> UnsupportedModelError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[0] if lines else type(error).__name__
    fixed = re.search(r"^\s*S = (.+)$", str(error), re.MULTILINE)
    if fixed:
        return UnsupportedModelError(
            f"{type(model).__name__} fixes its sequence length: torch.export requires S = {fixed[1].strip()}",
            needed="a forward that works for any length",
            remedy="read sizes from the inputs (x.shape) instead of a constant; " + " ".join(lines[1:3]),
        )
    return UnsupportedModelError(
        f"torch.export cannot trace {type(model).__name__}: {type(error).__name__}: {message}",
        remedy="look for data-dependent Python control flow; torch.export.draft_export names every place",
    )


def _flat_module(module: fx.GraphModule, names: Sequence[str]) -> fx.GraphModule:
    """The exported module with plain positional inputs, named as the model's own arguments."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node, name in zip(graph.find_nodes(op="placeholder"), names, strict=True):
        node.target = name
        node._rename(name)
    return fx.GraphModule(module, graph)


def _sequence_symbol(module: fx.GraphModule, dims: Sequence[int | None]) -> sympy.Symbol:
    for node, dim in zip(module.graph.find_nodes(op="placeholder"), dims, strict=True):
        if dim is not None:
            symbol = shape(node)[dim]
            assert isinstance(symbol, sympy.Symbol), f"{node}: the sequence was specialised to {symbol}"
            return symbol
    raise AssertionError("common_length has seen an input with a sequence")
