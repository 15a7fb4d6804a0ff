"""`sp::attention`: exact attention over a sequence that is spread over the ranks of a group.

B batch · H query heads · G key/value heads, G divides H · S local tokens · D, E head sizes of k and v

Tensors are local.  What else the ops take is in `Call`: names and global facts, never a rank, so that all ranks hold
the same graph; what a rank computes is looked up when the op runs.

Results: `out` [B, H, S, E] in q's dtype and `lse` [B, H, S], the log of each row's sum of exponentials, which backward
needs and which has no gradient.  `out` and all gradients are laid out [B, S, heads, size] in memory, so that the
`transpose(1, 2)` and `reshape` around an attention copy nothing; the kernels write them like that anyway.

Under autocast, q, k and v are cast as `scaled_dot_product_attention` would cast them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sp.errors import InputError
from sp.mask import Band
from sp.plan import Plan, make_plan
from sp.runtime.comm import World, find_world
from sp.runtime.kernels import find_kernel
from sp.runtime.merge import accumulation_dtype
from sp.runtime.ops.order import keep_order
from sp.runtime.ring import Saved
from sp.runtime.transport import find_transport

_CALL = "str mask, float scale, SymInt length, SymInt keys, str layout, str transport, str kernel, str group"
_FORWARD = f"(Tensor q, Tensor k, Tensor v, {_CALL}) -> (Tensor, Tensor)"
_BACKWARD = (
    f"(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_CALL}) -> (Tensor, Tensor, Tensor)"
)


@dataclass(frozen=True)
class Call:
    """The arguments of the ops that are no tensors, in order.

    mask: `str` of the `sp.mask.Band` of global positions.  scale: of the scores.
    length, keys: of the global sequences of queries and of keys.
    layout, transport, kernel: keys of LAYOUTS, TRANSPORTS, KERNELS.  group: name of the process group, "" for none.
    """

    mask: str
    scale: float
    length: int
    keys: int
    layout: str
    transport: str
    kernel: str
    group: str

    def plan(self, q_BHSD: Tensor, k_BGSD: Tensor) -> tuple[Plan, World]:
        """What this rank computes, once its tensors are found to be as long as the layout says."""
        world = find_world(self.group)
        plan = make_plan(self.layout, Band.parse(self.mask), self.length, world.size, world.rank, self.keys)
        totals = self.length, self.keys
        local = tuple(plan.layout.local_length(total, world.rank, world.size) for total in totals)
        found = q_BHSD.shape[2], k_BGSD.shape[2]
        assert found == local, (
            f"rank {world.rank} of {world.size} got {found[0]} queries and {found[1]} keys,"
            f" but its share of {totals} tokens is {local} in the layout {self.layout!r}"
        )
        return plan, world


def check(q_BHSD: Tensor, k_BGSD: Tensor, v_BGSE: Tensor, kernel: str) -> None:
    """Refuse what no kernel or this kernel cannot compute: InputError, StrategyError.  Fake tensors will do."""
    shapes = [tuple(x.shape) for x in (q_BHSD, k_BGSD, v_BGSE)]
    if any(x.dim() != 4 for x in (q_BHSD, k_BGSD, v_BGSE)):
        raise InputError(f"attention got q, k, v of shapes {shapes}", needed="[batch, heads, tokens, size]")
    heads, groups, values = (x.shape[1] for x in (q_BHSD, k_BGSD, v_BGSE))
    if groups != values or heads % groups or q_BHSD.shape[3] != k_BGSD.shape[3]:
        needed = "as many value heads as key heads, which divide the query heads, and q and k of one size"
        raise InputError(f"attention got q, k, v of shapes {shapes}", needed=needed)
    if not q_BHSD.shape[0] == k_BGSD.shape[0] == v_BGSE.shape[0]:
        raise InputError(f"attention got q, k, v of shapes {shapes}", needed="one batch size")
    if not q_BHSD.dtype == k_BGSD.dtype == v_BGSE.dtype:
        found = ", ".join(str(x.dtype) for x in (q_BHSD, k_BGSD, v_BGSE))
        raise InputError(f"attention got q, k, v of {found}", needed="one dtype")
    find_kernel(kernel).check(q_BHSD, k_BGSD, v_BGSE)


def _attention(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    call = Call(*arguments)
    check(q, k, v, call.kernel)
    plan, world = call.plan(q, k)
    kernel = find_kernel(call.kernel)
    return find_transport(call.transport).forward(q, k, v, plan, kernel, call.scale, world)


def _attention_fake(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    keep_order()
    check(q, k, v, Call(*arguments).kernel)
    batch, heads, length, _ = q.shape
    out_BSHE = q.new_empty((batch, length, heads, v.shape[3]))
    return out_BSHE.transpose(1, 2), q.new_empty((batch, heads, length), dtype=accumulation_dtype(q.dtype))


def _backward(grad_out: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    saved, call = Saved(*rest[:5]), Call(*rest[5:])
    plan, world = call.plan(saved.q_BHSD, saved.k_BGSD)
    kernel = find_kernel(call.kernel)
    return find_transport(call.transport).backward(grad_out, saved, plan, kernel, call.scale, world)


def _backward_fake(grad_out: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (_empty_like(x) for x in rest[:3])
    return dq, dk, dv


def _empty_like(x_BHSD: Tensor) -> Tensor:
    """The same shape and dtype, laid out [B, S, H, D]."""
    batch, heads, length, size = x_BHSD.shape
    return x_BHSD.new_empty((batch, length, heads, size)).transpose(1, 2)


attention = torch.library.custom_op("sp::attention", _attention, mutates_args=(), schema=_FORWARD)
attention.register_fake(_attention_fake)
attention_backward = torch.library.custom_op("sp::attention_backward", _backward, mutates_args=(), schema=_BACKWARD)
attention_backward.register_fake(_backward_fake)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*inputs[:3], out, lse)
    ctx.arguments = inputs[3:]


def _gradients(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    grads = attention_backward(grad_out, *ctx.saved_tensors, *ctx.arguments)
    return (*grads, *(None for _ in ctx.arguments))


attention.register_autograd(_gradients, setup_context=_setup_context)


def _register_autocast(device: str, key: str) -> None:
    """Cast what autocast casts, then run without autocast: what happens inside the ops is their own affair."""

    def lowered(value: Any) -> Any:
        """Of the operands of `scaled_dot_product_attention`, autocast casts all floats on its device but float64."""
        eligible = isinstance(value, Tensor) and value.is_floating_point() and value.device.type == device
        return value.to(torch.get_autocast_dtype(device)) if eligible and value.dtype != torch.float64 else value

    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        with torch.autocast(device, enabled=False):
            return attention(*(lowered(value) for value in arguments))

    def backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(device, enabled=False):
            return attention_backward(*arguments)

    _LIBRARY.impl("attention", forward, key)
    _LIBRARY.impl("attention_backward", backward, key)


_LIBRARY = torch.library.Library("sp", "FRAGMENT")  # keeps the registrations alive
_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")
