"""Where the sequences of a call are: which dims of each input hold one, and how long they are.

input_ids [2, 64], attention_mask [2, 1, 64, 64]     →     (1,), (2, 3)     one sequence, of 64 tokens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from sp.caches import SEQUENCE_DIM
from sp.errors import InputError
from sp.passes.call import Call

SequenceDim = int | Mapping[str, int | Sequence[int]]
Dims = tuple[int, ...]


def sequence_dims(
    call: Call, tensors: Sequence[torch.Tensor], sequence_dim: SequenceDim, past: int | None = None
) -> list[Dims]:
    """Which dims of each input hold a sequence: none, one, or the two of a mask of queries and keys.

    One number for all inputs leaves out those that have no such dim, and those that have one element there, as a number
    for each row has.  Of inputs [batch, heads, queries, keys] whose last two dims are as long as the sequences of the
    others, it means these two.

    past: how many tokens the caches of the call hold, each in dim 2 of [batch, heads, tokens, size].  Beside them, the
    other inputs are of the few new tokens and hold no sequence, but for a mask of old and new ones."""
    if any(call.kept):
        return _beside_caches(call, tensors, sequence_dim, past)
    if isinstance(sequence_dim, Mapping):
        _check_names(call, sequence_dim)
        named = ((name, tensor, sequence_dim.get(name)) for name, tensor in zip(call.names, tensors, strict=True))
        return [() if dims is None else _checked(name, tensor, dims) for name, tensor, dims in named]
    single = [(sequence_dim % x.ndim,) if -x.ndim <= sequence_dim < x.ndim else () for x in tensors]
    lengths = {x.shape[dims[0]] for x, dims in zip(tensors, single, strict=True) if dims and x.ndim < _MASK_DIMS} - {1}
    dims = [(2, 3) if _is_mask(x, its, lengths) else its for x, its in zip(tensors, single, strict=True)]
    longer = any(x.shape[dim] > 1 for x, its in zip(tensors, dims, strict=True) for dim in its)
    if not longer:
        return dims
    return [tuple(dim for dim in its if x.shape[dim] > 1) for x, its in zip(tensors, dims, strict=True)]


def _beside_caches(
    call: Call, tensors: Sequence[torch.Tensor], sequence_dim: SequenceDim, past: int | None
) -> list[Dims]:
    assert past is not None, "a cache with layers has tokens"
    others = [tensor for tensor, kept in zip(tensors, call.kept, strict=True) if not kept]
    if isinstance(sequence_dim, Mapping):
        names = [name for name, kept in zip(call.names, call.kept, strict=True) if not kept]
        named = {name: dims for name, dims in sequence_dim.items() if name in names}
        found = iter(
            [() if name not in named else _checked(name, x, named[name]) for name, x in zip(names, others, strict=True)]
        )
    else:
        sizes = [x.shape[sequence_dim] for x in others if -x.ndim <= sequence_dim < x.ndim]
        total = past + min(sizes, default=0)
        found = iter([_mask_dims(x, sequence_dim, total) for x in others])
    return [(SEQUENCE_DIM,) if kept else next(found) for kept in call.kept]


def _mask_dims(tensor: torch.Tensor, dim: int, total: int) -> Dims:
    """Where a mask has all `total` tokens, if this is one: [batch, keys] or [batch, heads, queries, keys]."""
    dims = (dim % tensor.ndim, 3) if tensor.ndim == _MASK_DIMS else (dim,) if -tensor.ndim <= dim < tensor.ndim else ()
    return tuple(dim % tensor.ndim for dim in dims if tensor.shape[dim] == total)


_MASK_DIMS = 4


def _is_mask(tensor: torch.Tensor, dims: Dims, lengths: set[int]) -> bool:
    if tensor.ndim != _MASK_DIMS:
        return False
    elsewhere = all(tensor.shape[dim] not in lengths or dim in (2, 3) for dim in dims)
    return elsewhere and tensor.shape[2] in lengths and tensor.shape[3] in lengths


def _checked(name: str, tensor: torch.Tensor, dims: int | Sequence[int]) -> Dims:
    given = (dims,) if isinstance(dims, int) else tuple(dims)
    wrong = [dim for dim in given if not -tensor.ndim <= dim < tensor.ndim]
    if wrong:
        found = f"sequence_dim {wrong[0]} of {name!r} is out of range for shape {tuple(tensor.shape)}"
        raise InputError(found, needed="the dim that holds the sequence")
    if len(given) > 2 or len({dim % tensor.ndim for dim in given}) < len(given):
        raise InputError(
            f"sequence_dim of {name!r} is {given}", needed="one dim, or the two dims of a mask: queries and keys"
        )
    return tuple(dim % tensor.ndim for dim in given)


def _check_names(call: Call, sequence_dim: Mapping[str, object]) -> None:
    unknown = set(sequence_dim) - set(call.names)
    if unknown:
        raise InputError(
            f"sequence_dim names {sorted(unknown)}, which this call does not pass",
            needed=f"names among: {', '.join(call.names)}",
        )


def sequence_lengths(
    call: Call, tensors: Sequence[torch.Tensor], dims: Sequence[Dims], past: int | None = None
) -> tuple[int, ...]:
    """The lengths of the sequences among the inputs, in their order.  Inputs of one length share a sequence.

    Where there is a `past`, it is the sequence: inputs that are longer hold it and some new tokens."""
    if past is not None:
        return (past,)
    lengths = [tensor.shape[dim] for tensor, its in zip(tensors, dims, strict=True) for dim in its]
    if not tensors:
        raise InputError("the call passes no tensor", needed="one that holds a sequence, such as [batch, sequence]")
    if not lengths:
        raise InputError(
            f"no input has a sequence dim: {shapes(call, tensors)}",
            needed="for example [batch, sequence]",
            remedy=f"add the batch, or say in which dim the sequence is: sequence_dim={{{call.names[0]!r}: 0, …}}",
        )
    return tuple(dict.fromkeys(lengths))


@dataclass(frozen=True)
class Stretch:
    """What fills a dim: the sequence of this number, and so many tokens more."""

    sequence: int
    more: int = 0


def stretches(
    call: Call, tensors: Sequence[torch.Tensor], dims: Sequence[Dims], lengths: Sequence[int], past: int | None = None
) -> list[dict[int, Stretch]]:
    """What each input holds in the dims that hold a sequence."""
    found: list[dict[int, Stretch]] = []
    for tensor, its, kept in zip(tensors, dims, call.kept or [""] * len(tensors), strict=True):
        if past is None:
            found.append({dim: Stretch(lengths.index(tensor.shape[dim])) for dim in its})
        else:
            found.append({dim: Stretch(0, 0 if kept else tensor.shape[dim] - past) for dim in its})
    return found


def shapes(call: Call, tensors: Sequence[torch.Tensor]) -> str:
    """The inputs with their shapes, for people."""
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(call.names, tensors, strict=True))


def batch_dim(tensor: torch.Tensor, dims: Dims, past: int | None = None) -> int | None:
    """The first dim that holds no sequence counts as batch, if any dim holds one, or there is a past.

    A batch of 1 is captured as such: torch.export proves a symbolic size from 2 on, and models do ask for 1."""
    free = [dim for dim in range(tensor.ndim) if dim not in dims]
    return free[0] if free and (dims or (past is not None and tensor.ndim > 1)) else None
