"""flex_attention as people call it, each beside the same attention written out.

On CPUs torch has no gradient for flex_attention: a model is captured with parameters that want none, then trained."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

HEADS, WIDTH, LONGEST = 4, 4, 32
Function = Callable[..., Tensor]
Way = Callable[..., Tensor]


class Flexible(nn.Module):
    """Values [B, S, H * D] → the same, by `way(self, q, k, v, *data)` on [B, H, S, D]."""

    def __init__(self, way: Way, kv_heads: int = HEADS) -> None:
        super().__init__()
        self.way, self.kv_heads = way, kv_heads
        self.w = nn.Linear(HEADS * WIDTH, (HEADS + 2 * kv_heads) * WIDTH)
        self.slopes = nn.Parameter(torch.rand(HEADS))
        self.table = nn.Parameter(torch.randn(8))
        self.tables = nn.Parameter(torch.randn(HEADS, 8))
        self.register_buffer("documents", torch.arange(LONGEST) // 5)

    def forward(self, x: Tensor, *data: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.w(x).view(batch, length, -1, WIDTH).transpose(1, 2)
        q, k, v = parts.split([HEADS, self.kv_heads, self.kv_heads], 1)
        return self.way(self, q, k, v, *data).transpose(1, 2).reshape(batch, length, width)


def blocks(q: Tensor, k: Tensor, mask_mod: Function) -> BlockMask:
    return create_block_mask(mask_mod, q.shape[0], HEADS, q.shape[2], k.shape[2], device="cpu")


def flexible(score: Function | None, mask: Function | None) -> Way:
    """score(model, *data), mask(model, *data): make the functions that flex_attention takes."""

    def way(m: Flexible, q: Tensor, k: Tensor, v: Tensor, *data: Tensor) -> Tensor:
        score_mod = None if score is None else score(m, *data)
        block_mask = None if mask is None else blocks(q, k, mask(m, *data))
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask, scale=0.3, enable_gqa=True)

    return way


def written(score: Function | None, mask: Function | None) -> Way:
    """The same, for whole tensors."""

    def way(m: Flexible, q: Tensor, k: Tensor, v: Tensor, *data: Tensor) -> Tensor:
        b, h = torch.arange(q.shape[0])[:, None, None, None], torch.arange(HEADS)[:, None, None]
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        k, v = (x.repeat_interleave(HEADS // m.kv_heads, 1) for x in (k, v))
        scores = q @ k.mT * 0.3
        scores = scores if score is None else score(m, *data)(scores, b, h, i, j)
        scores = scores if mask is None else scores.masked_fill(~mask(m, *data)(b, h, i, j), -math.inf)
        return scores.softmax(-1) @ v

    return way


def soft_cap(m: Flexible) -> Function:
    return lambda s, b, h, i, j: 20 * torch.tanh(s / 20)


def alibi(m: Flexible) -> Function:
    return lambda s, b, h, i, j: s + m.slopes[h] * (j - i)


def one_table(m: Flexible) -> Function:
    return lambda s, b, h, i, j: s + m.table[(i - j).clamp(0, 7)]


def tables(m: Flexible) -> Function:
    return lambda s, b, h, i, j: s + m.tables[h, (i - j).abs().clamp(max=7)]


def causal(m: Flexible) -> Function:
    return lambda b, h, i, j: i >= j


def window(m: Flexible) -> Function:
    return lambda b, h, i, j: (i >= j) & (i - j < 4)


def by_head(m: Flexible) -> Function:
    return lambda b, h, i, j: (i >= j) & (i - j <= h)


def stored_documents(m: Flexible) -> Function:
    return lambda b, h, i, j: m.documents[i] == m.documents[j]


def packed(m: Flexible, documents: Tensor) -> Function:
    return lambda b, h, i, j: (documents[b, i] == documents[b, j]) & (i >= j)


def prefix(m: Flexible, lengths: Tensor) -> Function:
    return lambda b, h, i, j: (j < lengths[b]) | (i >= j)


# score, mask, key heads, and the score that the attention gets.
FORMS: dict[str, tuple[Function | None, Function | None, int, str]] = {
    "plain": (None, None, 4, "full"),
    "grouped": (None, None, 2, "full"),
    "soft cap": (soft_cap, None, 4, "full | a = tanh.default(s); b = mul.Tensor(a, 20) -> score=b"),
    "alibi": (alibi, causal, 4, "causal | "),
    "one table": (one_table, None, 4, "full | l0:q l1:k l2:table+grad; "),
    "tables": (tables, causal, 4, "causal | l0:q l1:k l2:table+grad; "),
    "causal": (None, causal, 1, "causal"),
    "window": (None, window, 4, "window(3, 0)"),
    "by head": (None, by_head, 4, "causal | "),
    "stored documents": (None, stored_documents, 4, "full | l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a"),
    "packed": (None, packed, 4, "causal | l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a"),
    "prefix": (None, prefix, 4, "full | "),
}
DATA: dict[str, Callable[[int], Tensor]] = {
    "packed": lambda length: torch.arange(length)[None] // torch.tensor([[3], [4]]),
    "prefix": lambda length: torch.tensor([2, 5]),
}
