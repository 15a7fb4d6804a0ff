"""The ops between replicated values and what sharded computation makes of them.

| op              | forward                                  | backward        |
|-----------------|------------------------------------------|-----------------|
| `sp::replicate` | the very same tensor, nothing is copied  | `sp::reduce`    |
| `sp::reduce`    | the sum over the ranks (an all-reduce)   | `sp::replicate` |

A replicated value (a parameter) enters sharded computation through `sp::replicate`: each rank computes the gradient of
its own tokens, and the sum of these is the gradient of the value, whole and exact on every rank.  The result of
`sp::reduce` is replicated, and so is its gradient: every rank's part has all of it, and nothing is left to sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sp.runtime.comm import World, all_reduce_sum, find_world
from sp.runtime.ops.order import keep_order


def _sum(world: World, x: Tensor) -> Tensor:
    """In 16 bits every addition would round; this rounds once."""
    assert x.dtype != torch.bool, "a sum of bools counts nothing; convert them first"
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return all_reduce_sum(world, wide).to(x.dtype)


REDUCTIONS: Mapping[str, Callable[[World, Tensor], Tensor]] = MappingProxyType({"sum": _sum})


def _reduce(x: Tensor, op: str, group: str) -> Tensor:
    """Each rank's [shape] -> the reduction over the ranks, replicated [shape]."""
    assert op in REDUCTIONS, f"no reduction {op!r}, only {', '.join(REDUCTIONS)}"
    return REDUCTIONS[op](find_world(group), x)


def _reduce_fake(x: Tensor, op: str, group: str) -> Tensor:
    keep_order()
    return x.new_empty(x.shape)


def _keep_group(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.group = inputs[-1]


def _reduce_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return _replicate(gradient, ctx.group), None, None


class _Replicate(torch.autograd.Function):
    """A view forward; the sum of the ranks' gradients backward."""

    @staticmethod
    def forward(x: Tensor, group: str) -> Tensor:
        return x.view_as(x)

    setup_context = staticmethod(_keep_group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return reduce(gradients[0], "sum", ctx.group), None


def _replicate(x: Tensor, group: str) -> Tensor:
    """Replicated [shape] -> the same, for use in sharded computation."""
    result = _Replicate.apply(x, group)
    assert isinstance(result, Tensor)
    return result


reduce = torch.library.custom_op(
    "sp::reduce", _reduce, mutates_args=(), schema="(Tensor x, str op, str group) -> Tensor"
)
reduce.register_fake(_reduce_fake)
reduce.register_autograd(_reduce_backward, setup_context=_keep_group)

# A custom op may not return its input.  So this one is composite: one node for Dynamo and in printed graphs, and below
# that a view, which costs nothing, with an `sp::reduce` in its backward.
_library = torch.library.Library("sp", "FRAGMENT")
_library.define("replicate(Tensor(a) x, str group) -> Tensor(a)")
_library.impl("replicate", _replicate, "CompositeImplicitAutograd")
