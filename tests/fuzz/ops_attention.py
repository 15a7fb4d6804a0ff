"""Attention of every kind."""

import torch
import torch.nn.functional as F

from tests.fuzz.op import op, rare
from tests.fuzz.parts import HEADS


def causal(m, q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def full(m, q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def scaled(m, q, k, v):
    return F.scaled_dot_product_attention(q, k.tanh(), v, scale=0.3)


def window(m, q, k, v):
    at = torch.arange(q.shape[2])
    apart = at[:, None] - at[None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(apart >= 0) & (apart < 3))


def two_sided(m, q, k, v):
    at = torch.arange(q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(at[:, None] - at).abs() <= 2)


def causal_mask(m, q, k, v):
    mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def causal_bias(m, q, k, v):
    mask = torch.full((q.shape[2], q.shape[2]), float("-inf"), dtype=q.dtype).triu(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def padding_mask(m, q, flags):
    mask = flags[:, None, None] | (torch.arange(flags.shape[1]) == 0)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def grouped(m, x):
    """Two heads of keys and values for four of queries, repeated by hand."""
    q = m.a(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    k, v = (y.unflatten(-1, (HEADS // 2, -1)).transpose(1, 2) for y in (m.grouped(x), m.grouped(x).tanh()))
    k, v = (y[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for y in (k, v))
    return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def grouped_natively(m, x):
    q = m.a(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    k = m.grouped(x).unflatten(-1, (HEADS // 2, -1)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)


def by_hand(m, x):
    scores = m.a(x) @ m.b(x).transpose(1, 2)
    return scores.softmax(-1) @ x


def linear_attention(m, q, k):
    """Features of keys and values summed over the whole sequence, of any length."""
    phi, psi = F.elu(m.a(q)) + 1, F.elu(m.b(k)) + 1
    state, mass = psi.transpose(1, 2) @ k, psi.sum(1)
    return (phi @ state) / (phi * mass[:, None]).sum(-1, keepdim=True)


def linear_attention_einsum(m, x):
    q, k = m.a(x).softmax(-1), m.b(x).softmax(1)
    return torch.einsum("bsd,bde->bse", q, torch.einsum("btd,bte->bde", k, x))


def latents(m, x):
    """Learned queries look at all tokens."""
    q = m.prefix.expand(x.shape[0], -1, -1)
    return F.scaled_dot_product_attention(q[:, None], x[:, None], x[:, None])[:, 0]


def latents_by_hand(m, x):
    scores = m.prefix @ m.a(x).transpose(1, 2)
    return scores.softmax(-1) @ x


def from_latents(m, x, few):
    """All tokens look at a few vectors."""
    return F.scaled_dot_product_attention(x[:, None], few[:, None], few[:, None])[:, 0]


ATTENTION = {
    "causal": op("heads n, heads n, heads n -> heads n", causal, 10),
    "full": op("heads n, heads n, heads n -> heads n", full, 8),
    "scaled": op("heads n, heads n, heads n -> heads n", scaled, 3),
    "window": op("heads n, heads n, heads n -> heads n", window, 4),
    "two_sided": op("heads n, heads n, heads n -> heads n", two_sided, 3),
    "causal_mask": op("heads n, heads n, heads n -> heads n", causal_mask, 3),
    "causal_bias": op("heads n, heads n, heads n -> heads n", causal_bias, 2),
    "across": op("heads n, heads k, heads k -> heads n", full, 5),
    "causal_across": rare("heads n, heads k, heads k -> heads n", causal),
    "grouped": op("hidden n -> hidden n", grouped, 4),
    "grouped_natively": op("hidden n -> heads n", grouped_natively, 3),
    "padding_mask": rare("heads n, flags n -> heads n", padding_mask),
    "by_hand": rare("hidden n -> hidden n", by_hand),
    "linear_attention": op("hidden n, hidden k -> hidden n", linear_attention, 4),
    "linear_attention_einsum": op("hidden n -> hidden n", linear_attention_einsum, 2),
    "latents": rare("hidden n -> few", latents),
    "latents_by_hand": op("hidden n -> few", latents_by_hand, 2),
    "from_latents": rare("hidden n, few -> hidden n", from_latents),
}
