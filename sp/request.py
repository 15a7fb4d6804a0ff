"""One call of a model, ready to be matched with a capture: its structure, its tensors, its length."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sp.passes.call import Call
from sp.passes.input_dims import Dims, SequenceDim, batch_dim, sequence_dims, sequence_lengths
from sp.passes.modes import autocast_now

Lengths = tuple[int, ...]  # of each sequence among the inputs


@dataclass(frozen=True)
class Request:
    """`key` says everything that a capture bakes in; two calls with one key may differ in contents, batch and length.

    lengths: of the sequences among the tensors given; global or local, as the caller passes them."""

    call: Call
    tensors: tuple[Tensor, ...]
    dims: tuple[Dims, ...]
    lengths: Lengths
    key: str

    @staticmethod
    def of(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], sequence_dim: SequenceDim) -> Request:
        """Take a call apart.  InputError says which argument does not fit."""
        call, tensors = Call.of(model, args, kwargs)
        dims = sequence_dims(call, tensors, sequence_dim)
        lengths = sequence_lengths(call, tensors, dims)
        text = f"{call} {_model_state(model)} {_input_pattern(tensors, dims, lengths)}"
        return Request(call, tuple(tensors), tuple(dims), lengths, hashlib.sha256(text.encode()).hexdigest()[:16])

    def shapes(self, without_sequence: bool) -> str:
        """The tensors' shapes as text; `without_sequence` writes the sequence as S, for shards of unequal length."""
        shapes = [list[object](tensor.shape) for tensor in self.tensors]
        for shape, dims in zip(shapes, self.dims, strict=True):
            for dim in dims if without_sequence else ():
                shape[dim] = "S"
        return str(shapes)


def _model_state(model: nn.Module) -> str:
    """Modes, dtypes and devices that tracing bakes into the graph."""
    training = "".join("t" if module.training else "e" for module in model.modules())
    kinds = sorted({f"{value.dtype} {value.device}" for value in (*model.parameters(), *model.buffers())})
    return f"{training} {kinds} {autocast_now()}"


def _input_pattern(tensors: Sequence[Tensor], dims: Sequence[Dims], lengths: Sequence[int]) -> str:
    """Dtype, device and shape of each input, with the sequences and the batch left open."""
    batches = [batch_dim(tensor, its) for tensor, its in zip(tensors, dims, strict=True)]
    sizes = [tensor.shape[batch] for tensor, batch in zip(tensors, batches, strict=True) if batch is not None]
    patterns: list[str] = []
    for tensor, its, batch in zip(tensors, dims, batches, strict=True):
        shape = list[object](tensor.shape)
        for dim in its:
            shape[dim] = f"S{lengths.index(tensor.shape[dim])}"
        if batch is not None and tensor.shape[batch] != 1:
            shape[batch] = f"B{sizes.index(tensor.shape[batch])}"
        patterns.append(f"{tensor.dtype} {tensor.device} {tensor.requires_grad} {shape}")
    return "; ".join(patterns)
