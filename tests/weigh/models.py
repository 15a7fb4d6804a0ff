"""Small models, and how they are weighed: captured, and rewritten as far as the cost model needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sp.costs import Workload
from sp.passes import preparation, rewriting
from sp.passes.call import Call
from sp.passes.capture import capture
from sp.passes.manager import run_passes
from sp.program import Program
from sp.strategy import find_strategy
from sp.weigh import weigh


def prepare(model: nn.Module, *args: Tensor, **kwargs: Tensor) -> tuple[Program, list[Tensor]]:
    call, tensors = Call.of(model, args, kwargs)
    captured, _ = capture(model, call, tensors, sequence_dim=1, strategy=find_strategy("ring"))
    return run_passes(captured, (*preparation(), *rewriting())), tensors


def weighed(model: nn.Module, lengths: Sequence[int], *args: Tensor, **kwargs: Tensor) -> Workload:
    program, tensors = prepare(model, *args, **kwargs)
    return weigh(program, tensors, lengths, type(model).__name__, lambda port: True)


class MLP(nn.Module):
    def __init__(self, width: int = 4, hidden: int = 12) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.out(self.inside(x_BSD).relu())


class Layer(nn.Module):
    """One attention: causal, or under a window that the graph builds."""

    def __init__(self, width: int = 16, heads: int = 2, window: int | None = None) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.heads, self.window = heads, window

    def forward(self, x_BSD: Tensor) -> Tensor:
        parts = self.qkv(x_BSD).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.window is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            at = torch.arange(x_BSD.shape[1])
            back = at[:, None] - at[None, :]
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=(back >= 0) & (back < self.window))
        return x_BSD + mixed.transpose(1, 2).flatten(2)


class Latents(nn.Module):
    """5 queries of the model's own, which have no sequence."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 1, 5, width))
        self.inside = nn.Linear(width, width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        keys = self.inside(x_BSD)[:, None]
        queries = self.queries.expand(x_BSD.shape[0], -1, -1, -1)
        return F.scaled_dot_product_attention(queries, keys, keys).sum((1, 2))


class Cross(nn.Module):
    def forward(self, x_BSD: Tensor, y_BTD: Tensor) -> Any:
        keys = y_BTD[:, None]
        return F.scaled_dot_product_attention(x_BSD[:, None], keys, keys)[:, 0]


class Biased(nn.Module):
    """A bias of distances, causal or not, as ALiBi's."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.slope, self.causal = nn.Parameter(torch.ones(())), causal

    def forward(self, x_BSD: Tensor) -> Tensor:
        at, q = torch.arange(x_BSD.shape[1]), x_BSD[:, None]
        bias = -(at[:, None] - at[None, :]).abs() * 0.5
        bias = bias.masked_fill(at[None, :] > at[:, None], -torch.inf) if self.causal else bias
        return F.scaled_dot_product_attention(q, q, q, attn_mask=bias.to(x_BSD.dtype))[:, 0] * self.slope
