"""One call of a model, ready to be matched with a capture: its structure, its tensors, its length."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sp.caches import Origin, caches_in, global_length, origin_of
from sp.devices import without_numbers
from sp.granted import State, model_state
from sp.passes.call import Call
from sp.passes.input_dims import Dims, SequenceDim, Stretch, batch_dim, sequence_dims, sequence_lengths, stretches
from sp.passes.modes import autocast_now

Lengths = tuple[int, ...]  # of each sequence among the inputs


@dataclass(frozen=True)
class Request:
    """`key` says everything that a capture bakes in; two calls with one key may differ in contents, batch and length.

    text: what of it must be the same on all ranks, as their devices need not be; a line for each thing.  shared: its
    hash.  state: of the model, see `granted`.
    lengths: of the sequences among the tensors given; global or local, as the caller passes them.
    past: how many tokens, of the whole sequence, the caches of the call hold; None without any.
    caches: themselves, in order."""

    call: Call
    tensors: tuple[Tensor, ...]
    dims: tuple[Dims, ...]
    lengths: Lengths
    key: str
    text: str
    shared: str
    state: str
    past: int | None = None
    caches: tuple[object, ...] = ()

    @staticmethod
    def of(
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        sequence_dim: SequenceDim,
        state: State | None = None,
    ) -> Request:
        """Take a call apart.  InputError says which argument does not fit.  state: of the model, where it is known."""
        call, tensors = Call.of(model, args, kwargs)
        caches = [*caches_in((args, kwargs))]
        past = global_length(caches)
        dims = sequence_dims(call, tensors, sequence_dim, past)
        lengths = sequence_lengths(call, tensors, dims, past)
        held = stretches(call, tensors, dims, lengths, past)
        state = state or model_state(model)
        modes = [*state.modes, f"autocast: {autocast_now()}"]
        text = "\n".join([*call.lines(), *modes, *_input_pattern(call, tensors, held, past)])
        key, shared = _word(f"{text} {state.word}"), without_numbers(text)
        given = call, tuple(tensors), tuple(dims), lengths
        return Request(*given, key, shared, _word(shared), state.text, past, tuple(caches))

    def locals(self, inputs_are_local: bool) -> list[bool]:
        """Which tensors are this rank's part of a sequence.  Beside a cache, what holds new tokens never is."""
        if self.past is not None:
            return [kept == "local" for kept in self.call.kept]
        return [inputs_are_local and bool(dims) for dims in self.dims]

    @property
    def origins(self) -> list[Origin]:
        """Of the caches of which each rank has its own tokens."""
        return [found for cache in self.caches if (found := origin_of(cache)) is not None]

    def calls(self, number: int = 0) -> str:
        """A word for the calls that its caches come from; with the number of this call, for what this one makes."""
        made = [origin.call for origin in self.origins]
        return _word(f"{made} {self.shared} {self.state} {number}") if number else " ".join(made)

    def shapes(self, inputs_are_local: bool) -> str:
        """The tensors' shapes as text; the sequence of a shard is written S, since shards may be of unequal length."""
        shapes = [list[object](tensor.shape) for tensor in self.tensors]
        for shape, dims, local in zip(shapes, self.dims, self.locals(inputs_are_local), strict=True):
            for dim in dims if local else ():
                shape[dim] = "S"
        return str(shapes) if self.past is None else f"{shapes} after {self.past} tokens"


def _word(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _input_pattern(
    call: Call, tensors: Sequence[Tensor], held: Sequence[Mapping[int, Stretch]], past: int | None
) -> list[str]:
    """Dtype, device and shape of each input, with the sequences and the batch left open."""
    batches = [batch_dim(tensor, tuple(its), past) for tensor, its in zip(tensors, held, strict=True)]
    sizes = [tensor.shape[batch] for tensor, batch in zip(tensors, batches, strict=True) if batch is not None]
    patterns: list[str] = []
    for name, tensor, its, batch in zip(call.names, tensors, held, batches, strict=True):
        shape = list[object](tensor.shape)
        for dim, stretch in its.items():
            shape[dim] = f"S{stretch.sequence}+{stretch.more}"
        if batch is not None and tensor.shape[batch] != 1:
            shape[batch] = f"B{sizes.index(tensor.shape[batch])}"
        patterns.append(f"{name}: {tensor.dtype} {tensor.device} {tensor.requires_grad} {shape}")
    return patterns
