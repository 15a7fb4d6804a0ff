"""`sp::attention`: exact attention over a sequence that is spread over the ranks of a group.

B batch · H query heads · G key/value heads, G divides H · S local tokens · D, E head sizes of k and v

q, k, v and their kin are local; `leaves`, the tensors that the score is computed from (`sp.score`), are of global
length and the same on every rank.  What else the ops take is in `Call`: names and global facts, never a rank, so that
all ranks hold the same graph; what a rank computes is looked up when the op runs.

Results: `out` [B, H, S, E] in q's dtype and what is kept for backward, which has no gradient: `lse` [B, H, S], the log
of each row's sum of exponentials, beside q, k, v and `out`; or, where a transport has dealt heads, five tensors instead
of these: q, k, v, out and lse as it has dealt them (`Transport`), and behind them, under a score, the local `lse`: the
last one is the local lse wherever a query may see nothing.  Backward takes five tensors either way, and `shape`, how
many heads and tokens k has.  `out` and all gradients are laid out [B, S, heads, size] in memory, so that the
`transpose(1, 2)` and `reshape` around an attention copy nothing; the kernels write them like that anyway.  The gradient
of a leaf is this rank's part of it; a leaf that does not train gets an empty one from `attention_backward`, since an
operator cannot return None.

Under autocast, q, k and v are cast as `scaled_dot_product_attention` would cast them.  Leaves are not: what the text of
the score says of their dtypes is true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sp.errors import InputError, SpError
from sp.mask import Band
from sp.plan import Plan
from sp.runtime.faults import Inside
from sp.runtime.kernels import find_kernel
from sp.runtime.ops.order import keep_order
from sp.runtime.scores import BoundScore
from sp.runtime.stream import Saved
from sp.runtime.transport import find_transport
from sp.runtime.world import World, find_world
from sp.score import Score

_CALL = (
    "Tensor[] leaves, str mask, str score, float scale,"
    " SymInt length, SymInt keys, str layout, str transport, str kernel, str group"
)
_FORWARD = f"(Tensor q, Tensor k, Tensor v, {_CALL}) -> (Tensor, Tensor[])"
_BACKWARD = f"(Tensor grad_out, Tensor[] saved, SymInt[] shape, {_CALL}) -> (Tensor, Tensor, Tensor, Tensor[])"

Results = tuple[Tensor, list[Tensor]]
Gradients = tuple[Tensor, Tensor, Tensor, list[Tensor]]


@dataclass(frozen=True)
class Call:
    """The arguments of the ops that are no tensors, in order.

    mask: `str` of the `sp.mask.Band` of global positions.  score: `str` of the `sp.score.Score` inside of it.
    scale: of the products of queries and keys.
    length, keys: of the global sequences of queries and of keys; under the transport "merge" the queries are of none,
    and the same on every rank.
    layout: for `find_layout`.  transport, kernel: of TRANSPORTS, KERNELS.  group: name of the process group, or "".
    """

    mask: str
    score: str
    scale: float
    length: int
    keys: int
    layout: str
    transport: str
    kernel: str
    group: str

    def plan(self, queries: int, keys: int) -> tuple[Plan, World]:
        """What this rank computes, once its tensors are found to be as long as the layout says."""
        world = find_world(self.group)
        make = find_transport(self.transport).plan
        plan = make(self.layout, Band.parse(self.mask), self.length, world, self.keys)
        found = queries, keys
        if found != plan.local:  # under `python -O` too: slices of tensors that are too short say nothing
            raise AssertionError(
                f"rank {world.rank} of {world.size} got {found[0]} queries and {found[1]} keys,"
                f" but its share of {(self.length, self.keys)} tokens is {plan.local} in the layout {self.layout!r}"
            )
        return plan, world

    def bind(self, leaves: list[Tensor], plan: Plan, device: torch.device) -> BoundScore | None:
        """The score for this rank, None if there is none."""
        return BoundScore.bind(self.score, leaves, plan, device) if self.score else None

    def named(self, direction: str) -> Inside:
        """Around what exchanges: a rank that is lost there was lost in this attention."""
        return Inside("attention {}, {} layout over {}", direction, self.layout, self.transport)


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


def check_leaves(leaves: list[Tensor], call: Call) -> None:
    """Our mistake, if not: the text of the score names its leaves."""
    named = len(Score.parse(call.score).leaves)
    assert len(leaves) == named, f"attention got {len(leaves)} leaves, its score {call.score!r} names {named}"


def _attention(q: Tensor, k: Tensor, v: Tensor, leaves: list[Tensor], *arguments: Any) -> Results:
    call = Call(*arguments)
    check(q, k, v, call.kernel)
    check_leaves(leaves, call)
    plan, world = call.plan(q.shape[2], k.shape[2])
    kernel, score = find_kernel(call.kernel), call.bind(leaves, plan, q.device)
    with call.named("forward"):
        return find_transport(call.transport).forward(q, k, v, plan, kernel, call.scale, world, score)


def _attention_fake(q: Tensor, k: Tensor, v: Tensor, leaves: list[Tensor], *arguments: Any) -> Results:
    keep_order()
    call = Call(*arguments)
    check(q, k, v, call.kernel)
    check_leaves(leaves, call)
    batch, heads, length, _ = q.shape
    kept = find_transport(call.transport).kept(
        q, k, v, call.layout, (call.length, call.keys), call.group, bool(call.score)
    )
    return q.new_empty((batch, length, heads, v.shape[3])).transpose(1, 2), kept


def _backward(grad_out: Tensor, saved: list[Tensor], shape: list[int], *rest: Any) -> Gradients:
    leaves, call, (groups, keys) = rest[0], Call(*rest[1:]), shape
    plan, world = call.plan(grad_out.shape[2], keys)
    kernel, score = find_kernel(call.kernel), call.bind(leaves, plan, grad_out.device)
    run, dtype = find_transport(call.transport).backward, saved[0].dtype
    q, k, v, out, lse = saved
    with call.named("backward"):
        dq, dk, dv, dleaves = run(grad_out, Saved(q, k, v, out, lse, groups), plan, kernel, call.scale, world, score)
    trained = [grad.to(leaf.dtype) for grad, leaf in zip(dleaves, leaves, strict=True)]
    return dq.to(dtype), dk.to(dtype), dv.to(dtype), trained


def _backward_fake(grad_out: Tensor, saved: list[Tensor], shape: list[int], *rest: Any) -> Gradients:
    size, value_size = saved[0].shape[3], saved[2].shape[3]
    batch, heads, length, _ = grad_out.shape
    groups, keys = shape
    shapes = (heads, length, size), (groups, keys, size), (groups, keys, value_size)
    dq, dk, dv = (_empty(saved[0], batch, heads, length, width) for heads, length, width in shapes)
    pairs = zip(rest[0], Score.parse(Call(*rest[1:]).score).leaves, strict=True)
    return dq, dk, dv, [given.new_empty(given.shape if leaf.trains else 0) for given, leaf in pairs]


def _empty(like: Tensor, batch: int, heads: int, length: int, width: int) -> Tensor:
    """[B, heads, S, width], laid out [B, S, heads, width]."""
    return like.new_empty((batch, length, heads, width)).transpose(1, 2)


attention = torch.library.custom_op("sp::attention", _attention, mutates_args=(), schema=_FORWARD)
attention.register_fake(_attention_fake)
attention_backward = torch.library.custom_op("sp::attention_backward", _backward, mutates_args=(), schema=_BACKWARD)
attention_backward.register_fake(_backward_fake)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    q, k, v, leaves, *arguments = inputs
    out, kept = output
    ctx.mark_non_differentiable(*kept)
    ctx.save_for_backward(*saved_tensors(q, k, v, out, kept), *leaves)
    ctx.shape, ctx.arguments = k.shape[1:3], arguments


def saved_tensors(q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: list[Tensor]) -> list[Tensor]:
    """What backward takes: what was kept, or the operands where that is lse alone."""
    return [q, k, v, out, *kept] if len(kept) == 1 else kept[:5]


def _gradients(ctx: Any, grad_out: Tensor, grad_kept: list[Tensor]) -> tuple[Any, ...]:
    kept = list(ctx.saved_tensors)  # once: hooks of the caller and checkpoints unpack at every look
    saved, leaves = kept[:5], kept[5:]
    *grads, found = attention_backward(grad_out, saved, list(ctx.shape), leaves, *ctx.arguments)
    named = Score.parse(Call(*ctx.arguments).score).leaves
    trained = [grad if leaf.trains else None for grad, leaf in zip(found, named, strict=True)]
    return (*grads, trained, *(None for _ in ctx.arguments))


attention.register_autograd(_gradients, setup_context=_setup_context)


def _no_second_derivative(ctx: Any, *gradients: Any) -> None:
    raise SpError(
        "the gradient of an attention is differentiated once more",
        needed="first derivatives: kernels have no others",
        remedy="leave out create_graph=True, or penalise gradients of what lies behind the last attention",
    )


attention_backward.register_autograd(_no_second_derivative)


def _register_autocast(device: str, key: str) -> None:
    """Cast what autocast casts, then run without autocast: what happens inside the ops is their own affair."""

    def lowered(value: Any) -> Any:
        """Of the operands of `scaled_dot_product_attention`, autocast casts all floats on its device but float64."""
        eligible = isinstance(value, Tensor) and value.is_floating_point() and value.device.type == device
        return value.to(torch.get_autocast_dtype(device)) if eligible and value.dtype != torch.float64 else value

    def forward(*arguments: Any) -> Results:
        with torch.autocast(device, enabled=False):
            return attention(*(lowered(value) for value in arguments))

    def backward(*arguments: Any) -> Gradients:
        with torch.autocast(device, enabled=False):
            return attention_backward(*arguments)

    _LIBRARY.impl("attention", forward, key)
    _LIBRARY.impl("attention_backward", backward, key)


_LIBRARY = torch.library.Library("sp", "FRAGMENT")  # keeps the registrations alive
_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")
