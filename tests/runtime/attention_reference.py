"""Attention in its plainest form, over the whole sequence: what the runtime is compared with.

B batch · H query heads · G key/value heads · S tokens · D head size
"""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sp.layout import find_layout
from sp.mask import Band
from sp.runtime.ops.attention import attention
from sp.testing import run_mesh, run_ranks

T = TypeVar("T")
SCALE = 0.3


def make_inputs(
    length: int, heads: int = 4, groups: int = 2, size: int = 8, batch: int = 2, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """q, k, v and the gradient of the output, the same on each call."""
    generator = torch.Generator().manual_seed(length)
    shapes = [(batch, length, h, size) for h in (heads, groups, groups, heads)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).transpose(1, 2) for s in shapes]


def visible(mask: Band, length: int) -> Tensor:
    i, j = torch.arange(length).unsqueeze(1), torch.arange(length)
    seen_SS = torch.ones(length, length, dtype=torch.bool)
    if mask.left is not None:
        seen_SS &= i - mask.left <= j
    if mask.right is not None:
        seen_SS &= j <= i + mask.right
    return seen_SS


def single(inputs: list[Tensor], mask: Band) -> list[Tensor]:
    """out, dq, dk, dv of torch's own attention on one device."""
    *qkv, grad_BHSD = inputs
    q_BHSD, k_BGSD, v_BGSD = (x.detach().clone().requires_grad_() for x in qkv)
    causal = mask == Band(None, 0)
    seen_SS = None if causal or mask == Band() else visible(mask, q_BHSD.shape[2])
    out_BHSD = F.scaled_dot_product_attention(
        q_BHSD, k_BGSD, v_BGSD, seen_SS, is_causal=causal, scale=SCALE, enable_gqa=True
    )
    return [out_BHSD.detach(), *torch.autograd.grad(out_BHSD, (q_BHSD, k_BGSD, v_BGSD), grad_BHSD)]


def spread(
    inputs: list[Tensor],
    mask: Band,
    layout: str,
    kernel: str,
    group: str,
    rank: int,
    world: int,
    transport: str = "ring",
) -> list[Tensor]:
    """out, dq, dk, dv of one rank of `sp::attention`."""
    length = inputs[0].shape[2]
    here = torch.tensor(find_layout(layout).positions(length, rank, world), dtype=torch.long)
    q, k, v, grad = (x.transpose(1, 2)[:, here].transpose(1, 2) for x in inputs)
    for x in (q, k, v):
        x.requires_grad_()
    out, _ = attention(q, k, v, [], str(mask), "", SCALE, length, length, layout, transport, kernel, group)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


def gather(parts: list[list[Tensor]], layout: str, length: int) -> list[Tensor]:
    """The ranks' parts of some values, in the order of the sequence."""
    order = torch.tensor([p for r in range(len(parts)) for p in find_layout(layout).positions(length, r, len(parts))])
    return [torch.cat(values, dim=2)[:, :, order.argsort()] for values in zip(*parts, strict=True)]


def spread_and_gather(
    inputs: list[Tensor], mask: Band, layout: str, kernel: str, world: int | tuple[int, int], transport: str = "ring"
) -> list[Tensor]:
    """out, dq, dk, dv over the whole sequence, computed by `world` threads, or by those of a mesh."""

    def rank(group: dist.ProcessGroup, name: str) -> list[Tensor]:
        return spread(inputs, mask, layout, kernel, name, group.rank(), group.size(), transport)

    parts = on_threads(world, rank)
    return gather(parts, layout, inputs[0].shape[2])


def on_threads(world: int | tuple[int, int], rank: Callable[[dist.ProcessGroup, str], T]) -> list[T]:
    """`rank(group, name)` on each rank of a world, or of a mesh, where the name is that of its axes too."""
    if isinstance(world, int):
        return run_ranks(world, lambda group: rank(group, group.group_name))
    return run_mesh(world, lambda mesh: rank(mesh.whole, mesh.name))


def relative_errors(found: list[Tensor], wanted: list[Tensor]) -> list[float]:
    """L2 errors relative to the largest of the wanted tensors' norms per element.

    Not to each tensor's own: the gradients of q and k are zero but for rounding where a query sees one key only."""
    scale = max((w.double().norm() / w.numel() ** 0.5).item() for w in wanted)
    return [
        ((f.double() - w.double()).norm() / f.numel() ** 0.5).item() / scale for f, w in zip(found, wanted, strict=True)
    ]
