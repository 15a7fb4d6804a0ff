"""What runs on one rank: its part of an attention's tensors, and the op as a parallelized model calls it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sp.layout import find_layout
from sp.mask import CAUSAL
from sp.runtime.ops.attention import attention
from sp.strategy import find_strategy

SINGLE = "single"  # one process with as many threads as there are ranks


@dataclass(frozen=True)
class Attention:
    """One causal attention in float32: [batch, heads, length, size]; batch is 1."""

    length: int
    heads: int
    kv_heads: int
    size: int


@dataclass(frozen=True)
class Operands:
    """q, k, v of this rank and the gradient of its output, laid out as a projection leaves them."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor

    def fresh(self, trains: bool) -> list[Tensor]:
        return [x.detach().requires_grad_(trains) for x in (self.q, self.k, self.v)]


def make_operands(job: Attention, length: int) -> Operands:
    """Random ones of `length` tokens."""
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int) -> Tensor:
        return torch.randn((1, length, heads, job.size), generator=generator).transpose(1, 2)

    return Operands(draw(job.heads), draw(job.kv_heads), draw(job.kv_heads), draw(job.heads))


def time_attention(strategy: str, job: Attention, backward: bool) -> float:
    """Seconds of one forward, and of backward too if so asked; from a start in step with the other ranks."""
    if strategy == SINGLE:
        operands, run = make_operands(job, job.length), single_attention
    else:
        operands, run = rank_operands(strategy, job), parallel_attention(strategy, job)
    q, k, v = operands.fresh(backward)
    dist.barrier()
    start = time.perf_counter()
    out = run(q, k, v)
    if backward:
        out.backward(operands.grad)
    return time.perf_counter() - start


def single_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As a plain model calls it."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def rank_operands(strategy: str, job: Attention) -> Operands:
    """Of this rank's tokens."""
    layout = find_layout(find_strategy(strategy).layout)
    return make_operands(job, layout.local_length(job.length, dist.get_rank(), dist.get_world_size()))


def parallel_attention(strategy: str, job: Attention) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """`sp::attention` over the default group."""
    group, found = dist.group.WORLD, find_strategy(strategy)
    assert group is not None
    names = (found.layout, found.transport, "flash", group.group_name)
    facts = ([], str(CAUSAL), "", job.size**-0.5, job.length, job.length)
    return lambda q, k, v: attention(q, k, v, *facts, *names)[0]
