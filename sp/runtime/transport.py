"""Transports: how keys and values reach the queries.  A transport is a line in this table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sp.errors import StrategyError
from sp.plan import Plan
from sp.runtime.comm import World
from sp.runtime.kernels import Kernel
from sp.runtime.ring import Saved, ring_backward, ring_forward
from sp.runtime.scores import BoundScore

Forward = Callable[[Tensor, Tensor, Tensor, Plan, Kernel, float, World, BoundScore | None], tuple[Tensor, Tensor]]
Backward = Callable[
    [Tensor, Saved, Plan, Kernel, float, World, BoundScore | None], tuple[Tensor, Tensor, Tensor, list[Tensor]]
]


@dataclass(frozen=True)
class Transport:
    """forward(q, k, v, plan, kernel, scale, world, score): out, lse.
    backward(grad_out, saved, plan, …): dq, dk, dv, and the gradients of the score's leaves.

    All tensors but leaves are local; out, dq, dk, dv are laid out [B, S, heads, size]."""

    name: str
    forward: Forward
    backward: Backward


TRANSPORTS = {transport.name: transport for transport in (Transport("ring", ring_forward, ring_backward),)}


def find_transport(name: str) -> Transport:
    """The transport called `name`; StrategyError lists the known ones."""
    if name not in TRANSPORTS:
        known = ", ".join(sorted(TRANSPORTS))
        raise StrategyError(f"there is no transport {name!r}", needed=f"one of: {known}")
    return TRANSPORTS[name]
