"""The ops between replicated values and what sharded computation makes of them.

| op              | forward                                  | backward        |
|-----------------|------------------------------------------|-----------------|
| `sp::replicate` | the very same tensor, nothing is copied  | `sp::reduce`    |
| `sp::reduce`    | the sum over the ranks (an all-reduce)   | `sp::replicate` |
| `sp::peak`      | the maximum (minimum) of one dim         | (none)          |

A replicated value (a parameter) enters sharded computation through `sp::replicate`: each rank computes the gradient of
its own tokens, and the sum of these is the gradient of the value, whole and exact on every rank.  The result of
`sp::reduce` is replicated, and so is its gradient: every rank's part has all of it, and nothing is left to sum.  It
also takes "max" and "min", of what needs no gradient; `sp::peak` is what a rank, perhaps without tokens, has to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sp.runtime.comm import all_reduce
from sp.runtime.ops.order import keep_order
from sp.runtime.world import World, find_world


def _sum(world: World, x: Tensor) -> Tensor:
    """In 16 bits every addition would round; this rounds once."""
    assert x.dtype != torch.bool, "a sum of bools counts nothing; convert them first"
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return all_reduce(world, wide, dist.ReduceOp.SUM).to(x.dtype)


def _extreme(op: Any) -> Callable[[World, Tensor], Tensor]:
    """Maximum or minimum; NaN anywhere is NaN everywhere, as torch has it and backends have not."""

    def reduced(world: World, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return all_reduce(world, x.long(), op).to(x.dtype)  # backends do not know every dtype
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        result = all_reduce(world, wide.masked_fill(wide.isnan(), 0), op).to(x.dtype)
        missing = all_reduce(world, x.isnan().to(torch.int32), dist.ReduceOp.MAX)
        return result.masked_fill(missing.bool(), float("nan"))

    return reduced


REDUCTIONS: Mapping[str, Callable[[World, Tensor], Tensor]] = MappingProxyType(
    {"sum": _sum, "max": _extreme(dist.ReduceOp.MAX), "min": _extreme(dist.ReduceOp.MIN)}
)


def _reduce(x: Tensor, op: str, group: str) -> Tensor:
    """Each rank's [shape] -> the reduction over the ranks, replicated [shape]."""
    assert op in REDUCTIONS, f"no reduction {op!r}, only {', '.join(REDUCTIONS)}"
    return REDUCTIONS[op](find_world(group), x)


def _reduce_fake(x: Tensor, op: str, group: str) -> Tensor:
    keep_order()
    return x.new_empty(x.shape)


def _keep_group(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.group = inputs[-1]


def _constant(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.mark_non_differentiable(output)


def _setup_reduce(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, op, ctx.group = inputs
    if op != "sum":  # whose element it was, no other rank can say: `decompose` takes these of detached values
        ctx.mark_non_differentiable(output)


def _reduce_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return replicate_one(gradient, ctx.group), None, None


class _Replicate(torch.autograd.Function):
    """A view forward; the sum of the ranks' gradients backward."""

    @staticmethod
    def forward(x: Tensor, group: str) -> Tensor:
        return x.view_as(x)

    setup_context = staticmethod(_keep_group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return reduce(gradients[0], "sum", ctx.group), None


def replicate_one(x: Tensor, group: str) -> Tensor:
    """Replicated [shape] -> the same, for use in sharded computation."""
    result = _Replicate.apply(x, group)
    assert isinstance(result, Tensor)
    return result


reduce = torch.library.custom_op(
    "sp::reduce", _reduce, mutates_args=(), schema="(Tensor x, str op, str group) -> Tensor"
)
reduce.register_fake(_reduce_fake)
reduce.register_autograd(_reduce_backward, setup_context=_setup_reduce)


def _peak(x: Tensor, dim: int, op: str) -> Tensor:
    """The maximum or minimum along `dim`, kept with size 1; of no elements at all, what changes no other maximum."""
    if x.size(dim):
        return x.amax(dim, keepdim=True) if op == "max" else x.amin(dim, keepdim=True)
    shape = [1 if at == dim else size for at, size in enumerate(x.shape)]
    if x.is_floating_point():
        return x.new_full(shape, float("-inf" if op == "max" else "inf"))
    if x.dtype == torch.bool:
        return x.new_full(shape, op == "min")
    bounds = torch.iinfo(x.dtype)
    return x.new_full(shape, bounds.min if op == "max" else bounds.max)


def _peak_fake(x: Tensor, dim: int, op: str) -> Tensor:
    return x.new_empty([1 if at == dim else size for at, size in enumerate(x.shape)])


peak = torch.library.custom_op("sp::peak", _peak, mutates_args=(), schema="(Tensor x, int dim, str op) -> Tensor")
peak.register_fake(_peak_fake)
peak.register_autograd(lambda ctx, _: (None, None, None), setup_context=_constant)

# A custom op may not return its input.  So this one is composite: one node for Dynamo and in printed graphs, and below
# that a view, which costs nothing, with an `sp::reduce` in its backward.
_library = torch.library.Library("sp", "FRAGMENT")
_library.define("replicate(Tensor(a) x, str group) -> Tensor(a)")
_library.impl("replicate", replicate_one, "CompositeImplicitAutograd")
