"""Ops on one token at a time, and views: the sequence stays, or moves to another dim."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.fuzz.op import op, rare
from tests.fuzz.parts import EXPERTS, HEADS, D


def experts(m, x):
    """Each token by its best two experts, weights renormalised."""
    scores = m.router(x).softmax(-1)
    top, which = scores.topk(2, -1)
    gates = (F.one_hot(which, EXPERTS).to(x.dtype) * (top / top.sum(-1, keepdim=True)).unsqueeze(-1)).sum(-2)
    return torch.einsum("bsd,edf,bse->bsf", x, m.experts, gates)


def experts_in_turn(m, x):
    gates = m.router(x).softmax(-1)
    return sum(torch.tanh(x @ m.experts[e]) * gates[..., e : e + 1] for e in range(EXPERTS))


def load_balance(m, x):
    gates = m.router(x).softmax(-1)
    chosen = F.one_hot(gates.argmax(-1), EXPERTS).to(x.dtype)
    return (gates.mean((0, 1)) * chosen.mean((0, 1))).sum() * EXPERTS


def rotate(m, x):
    """Rotary positions on heads."""
    angles = torch.arange(x.shape[2]).unsqueeze(-1) / torch.tensor([1.0, 10.0]).to(x.dtype)[: x.shape[-1] // 2]
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def no_grad(m, x):
    with torch.no_grad():
        y = m.a(x)
    return x * torch.sigmoid(y)


def rotate_complex(m, x):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.5, 0.1, 0.01]).to(x.dtype)
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def fused(m, x):
    a, b, c = (x @ torch.cat([m.a.weight, m.b.weight, m.c.weight]).T).chunk(3, -1)
    return a * torch.sigmoid(b) + c


FEATURES = {
    "checkpointed": op("hidden n -> hidden n", lambda m, x: checkpoint(m.a, x, use_reentrant=False), 2),
    "rotate_complex": op("hidden n -> hidden n", rotate_complex, 2),
    "fused": op("hidden n -> hidden n", fused, 2),
    "count_positive": op("hidden n -> token n", lambda m, x: (x > 0).sum(-1).to(x.dtype) * m.one.bias, 2),
    "mask_by_value": op("hidden n, hidden n -> hidden n", lambda m, x, y: x.masked_fill(y > 0.5, 0.1), 2),
    "repeat_features": op("hidden n -> hidden n", lambda m, x: x[..., :4].repeat_interleave(2, -1), 2),
    "clamp": op("hidden n -> hidden n", lambda m, x: x.clamp(-1, 1), 2),
    "greedy": op("hidden n -> hidden n", lambda m, x: m.e(m.head(x).argmax(-1)), 2),
    "by_length": op("hidden n -> hidden n", lambda m, x: x * (x.shape[1] ** -0.5), 2),
    "batch_mean": op("hidden n -> hidden n", lambda m, x: x - x.mean(0), 1),
    "bmm": op("hidden n -> hidden n", lambda m, x: torch.bmm(x, m.a.weight.expand(x.shape[0], -1, -1)), 2),
    "einsum_heads": op(
        "heads n -> hidden n", lambda m, x: torch.einsum("bhsd,hde->bse", x, m.experts[:1].view(4, 2, 8)), 2
    ),
    "table_mean": op("hidden n -> hidden n", lambda m, x: x + m.positions[: x.shape[1]].mean(0), 2),
    "table_softmax": op("hidden n -> hidden n", lambda m, x: x * m.positions[: x.shape[1]].softmax(0), 2),
    "table_cumsum": rare("hidden n -> hidden n", lambda m, x: x + m.positions.tanh().cumsum(0)[: x.shape[1]] / 9),
    "table_cumsum_cut": rare("hidden n -> hidden n", lambda m, x: x + m.positions[: x.shape[1]].cumsum(0) / 9),
    "linspace": rare("hidden n -> hidden n", lambda m, x: x * torch.linspace(0, 1, x.shape[1]).to(x.dtype)[:, None]),
    "new_ones": op("hidden n -> hidden n", lambda m, x: x + x.new_ones(x.shape[0], x.shape[1], 1) * m.rms.weight, 2),
    "scalar_detached": op("hidden n, scalar -> hidden n", lambda m, x, y: x * torch.tanh(y.detach()), 2),
    "linear": op("hidden n -> hidden n", lambda m, x: m.a(x), 6),
    "linear_b": op("hidden n -> hidden n", lambda m, x: m.b(x)),
    "mlp": op("hidden n -> hidden n", lambda m, x: x + m.c(F.gelu(m.b(x)))),
    "tanh": op("hidden n -> hidden n", lambda m, x: torch.tanh(x)),
    "layer_norm": op("hidden n -> hidden n", lambda m, x: m.norm(x)),
    "rms_norm": op("hidden n -> hidden n", lambda m, x: m.rms(x)),
    "softmax": op("hidden n -> hidden n", lambda m, x: x.softmax(-1), 2),
    "normalize": op("hidden n -> hidden n", lambda m, x: F.normalize(m.a(x), dim=-1), 2),
    "cumsum_features": op("hidden n -> hidden n", lambda m, x: x.cumsum(-1) / D, 2),
    "flip_features": op("hidden n -> hidden n", lambda m, x: x.flip(-1), 2),
    "sort_features": op("hidden n -> hidden n", lambda m, x: x.sort(-1)[0], 1),
    "topk_features": op("hidden n -> token n", lambda m, x: x.topk(2, -1)[0].sum(-1), 2),
    "chunks": op("hidden n -> hidden n", lambda m, x: torch.cat([y.tanh() for y in x.chunk(2, -1)][::-1], -1), 2),
    "glu": op("hidden n -> hidden n", lambda m, x: F.glu(torch.cat([x, m.a(x)], -1)), 2),
    "square": op("hidden n -> hidden n", lambda m, x: torch.tanh(x * x), 2),
    "add": op("hidden n, hidden n -> hidden n", lambda m, x, y: x + y, 8),
    "gate": op("hidden n, hidden n -> hidden n", lambda m, x, y: x * torch.sigmoid(y)),
    "maximum": op("hidden n, hidden n -> hidden n", lambda m, x, y: torch.maximum(x, m.a(y)), 2),
    "where": op("hidden n, hidden n -> hidden n", lambda m, x, y: torch.where(x > y, x, 0.5 * y), 2),
    "stack": op("hidden n, hidden n -> hidden n", lambda m, x, y: torch.stack([x, y], 1).mean(1), 2),
    "stack_last": op("hidden n, hidden n -> hidden n", lambda m, x, y: torch.stack([x, y], -1).amax(-1), 2),
    "batch_cat": op("hidden n, hidden n -> hidden n", lambda m, x, y: m.a(torch.cat([x, y]))[: x.shape[0]], 1),
    "detach": op("hidden n -> hidden n", lambda m, x: x + m.a(x.detach()), 2),
    "no_grad": op("hidden n -> hidden n", no_grad, 2),
    "dropout_pooled": op("pooled -> pooled", lambda m, x: F.dropout(x, 0.3, m.training), 1),
    "dropout_heads": op("heads n -> heads n", lambda m, x: F.dropout(x, 0.3, m.training), 1),
    "dropout_merged": op("merged n -> merged n", lambda m, x: F.dropout(x, 0.3, m.training), 1),
    "dropout": op("hidden n -> hidden n", lambda m, x: F.dropout(x, 0.3, m.training), 2),
    "experts": op("hidden n -> hidden n", experts, 2),
    "experts_in_turn": op("hidden n -> hidden n", experts_in_turn, 1),
    "load_balance": op("hidden n -> scalar", load_balance, 1),
    "positions": op("hidden n -> hidden n", lambda m, x: x + m.positions[: x.shape[1]], 6),
    "positions_later": op("hidden n -> hidden n", lambda m, x: x + m.positions[3 : x.shape[1] + 3], 2),
    "positions_back": rare("hidden n -> hidden n", lambda m, x: x + m.positions[: x.shape[1]].flip(0)),
    "batch_norm_by_hand": op("hidden n -> hidden n", lambda m, x: x - x.mean(0, keepdim=True), 2),
    "token": op("hidden n -> token n", lambda m, x: m.one(x).squeeze(-1)),
    "feature": op("hidden n -> token n", lambda m, x: x[..., 2], 2),
    "token_norm": op("hidden n -> token n", lambda m, x: (1 + x.square().sum(-1)).sqrt(), 2),
    "spread_token": op("token n -> hidden n", lambda m, x: torch.tanh(x).unsqueeze(-1) * m.prefix[0, 0]),
    "weigh": op("hidden n, token n -> hidden n", lambda m, x, y: x * torch.tanh(y)[..., None]),
    "heads": op("hidden n -> heads n", lambda m, x: m.a(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2), 6),
    "heads_flat": op("hidden n -> heads n", lambda m, x: x.unflatten(-1, (HEADS, -1)).permute(0, 2, 1, 3), 2),
    "unheads": op("heads n -> hidden n", lambda m, x: m.b(x.transpose(1, 2).flatten(2)), 10),
    "rotate": op("heads n -> heads n", rotate, 6),
    "merge_heads": op("heads n -> heads n", lambda m, x: torch.tanh(x.flatten(0, 1)).view_as(x), 2),
    "merge": op("hidden n -> merged n", lambda m, x: x.reshape(-1, D).tanh()),
    "merge_view": rare("hidden n -> merged n", lambda m, x: m.a(x).view(x.shape[0] * x.shape[1], D)),
    "merged_linear": op("merged n -> merged n", lambda m, x: torch.addmm(m.a.bias, x, m.a.weight)),
    "merged_norm": op("merged n -> merged n", lambda m, x: m.norm(x)),
    "merged_add": op("merged n, merged n -> merged n", lambda m, x, y: x + y),
    "merged_mean": op("merged n -> merged n", lambda m, x: x - x.mean(0), 2),
    "unmerge": op("merged n, hidden n -> hidden n", lambda m, x, y: x.view(y.shape) + y, 8),
    "unmerge_batch": op("merged n, hidden n -> hidden n", lambda m, x, y: x.view(y.shape[0], -1, D), 8),
    "unmerge_mixed": rare("merged n, hidden n -> first n", lambda m, x, y: x.view(y.shape[1], y.shape[0], D)),
    "seq_first": op("hidden n -> first n", lambda m, x: x.transpose(0, 1), 3),
    "seq_first_ops": op("first n -> first n", lambda m, x: m.norm(m.a(x)) + m.positions[: x.shape[0], None]),
    "seq_first_merge": op("first n -> first n", lambda m, x: m.a(x.reshape(-1, D)).view_as(x)),
    "seq_first_back": op("first n -> hidden n", lambda m, x: x.transpose(0, 1), 8),
    "channels": op("hidden n -> channels n", lambda m, x: x.mT, 4),
    "channels_ops": op("channels n -> channels n", lambda m, x: x.softmax(1) + m.prefix[0, 1].unsqueeze(-1)),
    "channels_matmul": op("channels n -> channels n", lambda m, x: m.a.weight @ x),
    "channels_back": op("channels n -> hidden n", lambda m, x: x.transpose(1, 2), 8),
    "pooled_linear": op("pooled -> pooled", lambda m, x: torch.tanh(m.c(x)), 2),
    "pooled_add": op("pooled, pooled -> pooled", lambda m, x, y: x + y, 2),
    "pooled_spread": op("hidden n, pooled -> hidden n", lambda m, x, y: x + y.unsqueeze(1), 6),
    "pooled_scale": op("hidden n, pooled -> hidden n", lambda m, x, y: x * torch.sigmoid(y)[:, None], 4),
    "pooled_expand": op("hidden n, pooled -> hidden n", lambda m, x, y: torch.tanh(y)[:, None].expand_as(x) - x, 2),
    "few_mean": op("few -> pooled", lambda m, x: x.mean(1), 3),
    "few_linear": op("few -> few", lambda m, x: torch.tanh(m.c(x)), 2),
    "scalar_scale": op("hidden n, scalar -> hidden n", lambda m, x, y: x * torch.tanh(y), 4),
    "scalar_sum": op("scalar, scalar -> scalar", lambda m, x, y: x + 0.5 * y, 3),
}
