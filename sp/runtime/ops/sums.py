"""The sums of many gradients in one message, posted as soon as they are there and waited for at the end of backward.

| op                  | forward                                          | backward                                    |
|---------------------|--------------------------------------------------|---------------------------------------------|
| `sp::promise`       | a ticket and, for each tensor, a mark: no data   | waits for the sums (`sp::finish_sums`)      |
| `sp::replicate_all` | the very same tensors, nothing is copied         | posts their sum (`sp::start_sums`)          |

Autograd runs what is ready in the reverse order of forward.  So what `replicate_all`, in front of a block, posts, goes
out between the backward of this block and that of the block before; what `promise`, at the start of the graph, waits
for, is waited for after everything else.  The message travels from the one to the other as the gradient of the ticket,
which nobody else may read; a mark has a gradient where its tensor has one, so that what nobody has used keeps none.

The request under way is kept by torch, with the memory of the message, as it keeps those of its functional collectives
(`torch.ops._c10d_functional`): the ops have no state, and the compiler sees tensors alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from sp.runtime.comm import finish_sum, start_sum
from sp.runtime.ops.order import keep_order
from sp.runtime.ops.reduction import replicate_one
from sp.runtime.world import find_world


def _wide(dtype: torch.dtype) -> torch.dtype:
    """In 16 bits every addition would round."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _start_sums(gradients: Sequence[Tensor], group: str) -> Tensor:
    """Each rank's gradients -> a message [all elements] that will hold their sums: for `finish_sums`, nobody else."""
    message = _start_sums_fake(gradients, group)
    begin = 0
    for gradient in gradients:
        end = begin + gradient.numel()
        message[begin:end].view(gradient.shape).copy_(gradient)
        begin = end
    start_sum(find_world(group), message)
    return message


def _message_like(gradients: Sequence[Tensor], group: str) -> Tensor:
    keep_order()
    return _start_sums_fake(gradients, group)


def _start_sums_fake(gradients: Sequence[Tensor], group: str) -> Tensor:
    first = gradients[0]
    return first.new_empty((sum(gradient.numel() for gradient in gradients),), dtype=_wide(first.dtype))


def _finish_sums(message: Tensor, counts: Sequence[int], dtype: torch.dtype, group: str) -> list[Tensor]:
    """Waits for what `start_sums` has posted; `counts[i]` elements are the i-th sum: [counts[i]], in `dtype`."""
    finish_sum(find_world(group), message)
    return [part.to(dtype, copy=True) for part in message.split(list(counts))]


def _finish_sums_fake(message: Tensor, counts: Sequence[int], dtype: torch.dtype, group: str) -> list[Tensor]:
    keep_order()
    return [message.new_empty((count,), dtype=dtype) for count in counts]


start_sums = torch.library.custom_op(
    "sp::start_sums", _start_sums, mutates_args=(), schema="(Tensor[] gradients, str group) -> Tensor"
)
start_sums.register_fake(_message_like)

finish_sums = torch.library.custom_op(
    "sp::finish_sums",
    _finish_sums,
    mutates_args=(),
    schema="(Tensor message, SymInt[] counts, ScalarType dtype, str group) -> Tensor[]",
)
finish_sums.register_fake(_finish_sums_fake)


def _keep_shapes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gradients, ctx.group = inputs
    ctx.shapes, ctx.dtype = [gradient.shape for gradient in gradients], gradients[0].dtype


def _start_backward(ctx: Any, gradient: Tensor) -> tuple[list[Tensor], None]:
    """Every rank's part has all of the gradient of a sum, which is the same on all ranks."""
    parts = gradient.split([prod(shape) for shape in ctx.shapes])
    pairs = zip(parts, ctx.shapes, strict=True)
    return [replicate_one(part.view(shape).to(ctx.dtype), ctx.group) for part, shape in pairs], None


def _finish_backward(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Tensor, None, None, None]:
    return torch.cat([gradient.to(_wide(gradient.dtype)) for gradient in gradients]), None, None, None


start_sums.register_autograd(_start_backward, setup_context=_keep_shapes)
finish_sums.register_autograd(_finish_backward)


class _Promise(torch.autograd.Function):
    """Of a group and tensors a ticket [all elements] and a mark [] for each of these, without memory worth the name."""

    @staticmethod
    def forward(group: str, *xs: Tensor) -> tuple[Tensor, ...]:
        mark = xs[0].new_zeros((), dtype=_wide(xs[0].dtype))
        return mark.expand(sum(x.numel() for x in xs)), *(torch.zeros_like(mark) for _ in xs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.group, *xs = inputs
        ctx.shapes, ctx.dtype = [x.shape for x in xs], xs[0].dtype
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        message, *marks = gradients
        if message is None:
            return (None,) * (1 + len(marks))
        sums = finish_sums(message, [prod(shape) for shape in ctx.shapes], ctx.dtype, ctx.group)
        found = zip(sums, ctx.shapes, marks, strict=True)
        return None, *(None if mark is None else total.view(shape) for total, shape, mark in found)


class _ReplicateAll(torch.autograd.Function):
    """Takes a group, the tickets of the tensors, and the tensors; returns views of these."""

    @staticmethod
    def forward(group: str, *tickets_and_xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in tickets_and_xs[len(tickets_and_xs) // 2 + 1 :])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.group, ctx.like = inputs[0], [(x.shape, x.dtype, x.device) for x in output]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        n = len(gradients)
        if all(gradient is None for gradient in gradients):
            return (None,) * (2 * n + 2)
        known = [
            torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
            for gradient, (shape, dtype, device) in zip(gradients, ctx.like, strict=True)
        ]
        message = start_sums(known, ctx.group)
        marks = (None if gradient is None else message.new_zeros(()) for gradient in gradients)
        return None, message, *marks, *(None,) * n


def _promise(xs: Sequence[Tensor], group: str) -> list[Tensor]:
    """Replicated tensors of one dtype -> [ticket, mark, …], for `replicate_all` of the same tensors and nobody else."""
    trained = [x for x in xs if x.requires_grad]
    return list(_Promise.apply(group, *trained)) if trained else []


def _replicate_all(xs: Sequence[Tensor], tickets: Sequence[Tensor], group: str) -> list[Tensor]:
    """Replicated tensors of one dtype -> the same, for use in sharded computation.  tickets: what `promise` gave."""
    trained = [x for x in xs if x.requires_grad]
    replicas = iter(_ReplicateAll.apply(group, *tickets, *trained) if trained else ())
    return [next(replicas) if x.requires_grad else x.view_as(x) for x in xs]


# Composite, as `sp::replicate`: one node each in printed graphs, and below that views.
_library = torch.library.Library("sp", "FRAGMENT")
_library.define("promise(Tensor[] xs, str group) -> Tensor[]")
_library.impl("promise", _promise, "CompositeImplicitAutograd")
_library.define("replicate_all(Tensor(a)[] xs, Tensor[] tickets, str group) -> Tensor(a)[]")
_library.impl("replicate_all", _replicate_all, "CompositeImplicitAutograd")
