"""Attention as people write it: functions of q, k, v [B, H, S, D] that give [B, H, S, D]."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Form = Callable[["Written", Tensor, Tensor, Tensor], Tensor]
HEADS, WIDTH, LONGEST = 4, 3, 32


class Written(nn.Module):
    """Ids [B, S] → values [B, S, H * D], by an attention that is written out."""

    def __init__(self, form: Form, kv_heads: int = HEADS) -> None:
        super().__init__()
        self.form, self.kv_heads = form, kv_heads
        self.e = nn.Embedding(11, HEADS * WIDTH)
        self.q = nn.Linear(HEADS * WIDTH, HEADS * WIDTH)
        self.kv = nn.Linear(HEADS * WIDTH, 2 * kv_heads * WIDTH)
        self.slopes = nn.Parameter(torch.rand(HEADS))
        self.sinks = nn.Parameter(torch.rand(HEADS))
        self.register_buffer("bias", torch.tril(torch.ones(LONGEST, LONGEST)).view(1, 1, LONGEST, LONGEST))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.e(ids)
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, HEADS, WIDTH).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, self.kv_heads, WIDTH).permute(2, 0, 3, 1, 4)
        return self.form(self, q, k, v).transpose(1, 2).reshape(batch, length, HEADS * WIDTH)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) * WIDTH**-0.5


def future(q: Tensor) -> Tensor:
    """True where a key lies behind its query."""
    places = torch.arange(q.shape[-2])
    return places > places[:, None]


def hidden(q: Tensor, k: Tensor) -> Tensor:
    """Causal scores."""
    return scores(q, k).masked_fill(future(q), -math.inf)


def nano_gpt(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """nanoGPT's manual path, with the mask in a buffer."""
    length = q.size(2)
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(m.bias[:, :, :length, :length] == 0, float("-inf"))
    att = F.softmax(att, dim=-1)
    return F.dropout(att, 0.0, m.training) @ v


def biased_bmm(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Bloom's: scores [B * H, S, S] by baddbmm, a mask [B, 1, S, S] between."""
    batch, length = q.shape[0], q.shape[2]
    alibi = (m.slopes[:, None, None] * torch.arange(length)).repeat(batch, 1, 1)
    q, k, v = (x.reshape(-1, length, WIDTH) for x in (q, k, v))
    att = torch.baddbmm(alibi, q, k.transpose(1, 2), beta=0.5, alpha=0.25).view(batch, HEADS, length, length)
    mask = q.new_zeros(length, length).masked_fill(future(q), torch.finfo(q.dtype).min)
    att = (att + mask[None, None]).softmax(-1)
    return torch.bmm(att.view(-1, length, length), v).view(batch, HEADS, length, WIDTH)


def grouped(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Five dims, with a bias for each head and causal."""
    batch, groups, length, _ = k.shape
    q = q.reshape(batch, groups, -1, length, WIDTH)
    att = torch.einsum("bgnqd,bgkd->bgnqk", q, k) / WIDTH
    att = (att + m.slopes.view(1, groups, -1, 1, 1)).masked_fill(future(q), -math.inf).softmax(-1)
    return torch.einsum("bgnqk,bgkd->bgnqd", att, v).reshape(batch, HEADS, length, WIDTH)


def by_letters(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads behind the sequence."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    att = torch.einsum("bqhd,bkhd->bhqk", q, k).mul(0.3).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", att, v).transpose(1, 2)


def sunk(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """GPT-OSS's: the score of one more key, whose weight is dropped."""
    sinks = m.sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    joined = torch.cat([hidden(q, k), sinks], dim=-1)
    joined = joined - joined.max(dim=-1, keepdim=True).values
    return F.softmax(joined, dim=-1, dtype=joined.dtype)[..., :-1].to(v.dtype) @ v


def repeated(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys and values repeated for the query's heads."""
    k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape) for x in (k, v))
    return hidden(q, k).softmax(-1) @ v


def flat_heads(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.bmm(torch.bmm(q, k.mT).softmax(2), v).unflatten(0, (-1, HEADS))


def one_head(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[B, S, H * D] as one head, with a mask for each row."""
    q, k, v = (x.transpose(1, 2).flatten(2) for x in (q, k, v))
    out = (scores(q, k) - future(q) * 1e9).softmax(-1) @ v
    return out.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)


def without_batch(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[S, D], each by itself."""
    return torch.stack([torch.stack([(q[0, h] @ k[0, h].t()).softmax(-1) @ v[0, h] for h in range(HEADS)])] * 2)


def soft_cap(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    att = torch.tanh(scores(q, k) / 5.0) * 5.0
    return att.masked_fill(future(q), torch.finfo(q.dtype).min).softmax(-1) @ v


def upcast(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.float(), k.float(), v.float()
    return (F.softmax(hidden(q, k), dim=-1, dtype=torch.float64).type_as(v) @ v).double()


FORMS: dict[str, tuple[Form, int]] = {
    "plain": (lambda m, q, k, v: (q @ k.mT).softmax(-1) @ v, 4),
    "scaled before": (lambda m, q, k, v: torch.matmul(q / 2, k.transpose(2, 3)).softmax(-1) @ v, 4),
    "divided": (lambda m, q, k, v: (q @ k.mT / torch.full([], 3.0)).div(2).softmax(-1) @ v, 4),
    "causal": (lambda m, q, k, v: hidden(q, k).softmax(-1) @ v, 4),
    "where": (lambda m, q, k, v: torch.where(future(q), -math.inf, scores(q, k)).softmax(-1) @ v, 4),
    "learned bias": (lambda m, q, k, v: (scores(q, k) + m.slopes[:, None, None]).softmax(-1) @ v, 4),
    "used twice": (lambda m, q, k, v: (lambda s: s * s.sigmoid())(scores(q, k)).softmax(-1) @ v, 4),
    "soft cap": (soft_cap, 4),
    "nanoGPT": (nano_gpt, 4),
    "safe": (lambda m, q, k, v: torch.ops.aten._safe_softmax(hidden(q, k), -1) @ v, 4),
    "lowered softmax": (lambda m, q, k, v: torch._softmax(hidden(q, k), -1, False) @ v, 4),
    "no dropout": (lambda m, q, k, v: F.dropout(scores(q, k).softmax(-1), 0.5, False) @ v, 4),
    "one key head": (lambda m, q, k, v: hidden(q, k).softmax(-1) @ v, 1),
    "repeated": (repeated, 2),
    "bmm": (flat_heads, 4),
    "biased bmm": (biased_bmm, 4),
    "grouped": (grouped, 2),
    "by letters": (by_letters, 4),
    "sink": (sunk, 4),
    "one head": (one_head, 4),
    "no batch": (without_batch, 4),
}
