"""Ops that look at the whole sequence: sums, maxima, softmax, statistics, sorts."""

import torch

from tests.fuzz.op import op, rare
from tests.fuzz.parts import D


def attention_pool(m, x):
    return (m.one(x).softmax(1) * x).sum(1)


def weighted_mean(m, x, y):
    y = torch.sigmoid(y)
    return (x * y[..., None]).sum(1) / y.sum(1, keepdim=True)


def masked_mean(m, x, flags):
    return (x * flags[..., None]).sum(1) / flags.sum(1, keepdim=True).clamp(min=1)


def masked_max(m, x, flags):
    return x.masked_fill(~flags[..., None], -5.0).amax(1)


def instance_norm(m, x):
    mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)
    return (x - mean) / (variance + 1).sqrt()


ALONG = {
    "relu_amax": op("hidden n -> pooled", lambda m, x: (x - 1).relu().amax(1), 2),
    "relu_max": op("hidden n -> pooled", lambda m, x: (x - 1).relu().max(1)[0], 2),
    "count_along": op("hidden n -> pooled", lambda m, x: (x > 0).sum(1) * m.rms.weight, 2),
    "mean_of_tokens": op("hidden n -> hidden n", lambda m, x: x - x.mean((0, 1)), 2),
    "sum_over_length": op("hidden n -> pooled", lambda m, x: x.sum(1) / x.shape[1] ** 0.5, 2),
    "cross_mean": op("hidden n, hidden n -> pooled", lambda m, x, y: torch.einsum("bsd,bsd->bd", x, y).tanh(), 2),
    "dot_all": op("hidden n, hidden n -> scalar", lambda m, x, y: torch.tanh((x * y).sum((1, 2))).mean(), 2),
    "squeeze_excite": op("hidden n -> hidden n", lambda m, x: x * torch.sigmoid(m.c(x.mean(1))).unsqueeze(1), 2),
    "argmax_token": op("token n -> pooled", lambda m, x: m.positions[x.argmax(1) % 9], 2),
    "weighted_by_rank": rare("token n -> token n", lambda m, x: x.argsort(1).to(x.dtype)),
    "sum": op("hidden n -> pooled", lambda m, x: torch.tanh(x).sum(1), 3),
    "mean": op("hidden n -> pooled", lambda m, x: x.mean(1), 4),
    "mean_kept": op("hidden n -> hidden n", lambda m, x: x - x.mean(1, keepdim=True), 3),
    "mean_all": op("hidden n -> scalar", lambda m, x: torch.tanh(x).mean(), 3),
    "sum_all": op("hidden n -> scalar", lambda m, x: torch.tanh(x).sum(), 2),
    "mean_back": op("hidden n -> scalar", lambda m, x: torch.tanh(x).mean((1, 2)).square().sum(), 2),
    "amax": op("hidden n -> pooled", lambda m, x: x.amax(1), 3),
    "amin_kept": op("hidden n -> hidden n", lambda m, x: x - x.amin(1, keepdim=True), 2),
    "amax_two": op("hidden n -> pooled", lambda m, x: x.amax((1, 2))[:, None].expand(-1, D), 2),
    "max_all": op("hidden n -> scalar", lambda m, x: x.max(), 2),
    "max": op("hidden n -> pooled", lambda m, x: x.max(1).values, 3),
    "min_kept": op("hidden n -> pooled", lambda m, x: x.min(1, keepdim=True)[0].squeeze(1), 2),
    "argmax": op("hidden n -> pooled", lambda m, x: x.argmax(1).to(x.dtype) * m.prefix[0, 0], 2),
    "max_place": op("token n -> pooled", lambda m, x: m.e(x.max(1).indices % 7), 2),
    "softmax_along": op("hidden n -> hidden n", lambda m, x: x.softmax(1), 3),
    "log_softmax_along": op("hidden n -> hidden n", lambda m, x: x.log_softmax(dim=1), 2),
    "attention_pool": op("hidden n -> pooled", attention_pool, 4),
    "token_softmax": op("token n -> token n", lambda m, x: x.softmax(-1), 3),
    "logsumexp": op("hidden n -> pooled", lambda m, x: x.logsumexp(1), 3),
    "logsumexp_all": op("hidden n -> pooled", lambda m, x: x.logsumexp((1, 2))[:, None] * m.prefix[0, 0], 1),
    "var": op("hidden n -> pooled", lambda m, x: x.var(1, unbiased=False), 3),
    "var_kept": op("hidden n -> hidden n", lambda m, x: x / (1 + x.var(1, keepdim=True, correction=0)), 2),
    "var_all": op("hidden n -> scalar", lambda m, x: x.var(), 2),
    "std": rare("hidden n -> pooled", lambda m, x: x.std(1, correction=0)),
    "instance_norm": op("hidden n -> hidden n", instance_norm, 2),
    "norm_along": rare("hidden n -> pooled", lambda m, x: x.norm(dim=1)),
    "square_norm": op("hidden n -> pooled", lambda m, x: (1 + x.square().sum(1)).sqrt(), 2),
    "weighted_mean": op("hidden n, token n -> pooled", weighted_mean, 3),
    "masked_mean": op("hidden n, flags n -> pooled", masked_mean, 4),
    "masked_max": op("hidden n, flags n -> pooled", masked_max, 3),
    "any": op("hidden n -> pooled", lambda m, x: (x > 1).any(1).to(x.dtype) + m.prefix[0, 1], 1),
    "all_token": op("hidden n -> pooled", lambda m, x: (x > -2).all(1) * m.prefix[0, 1], 1),
    "gram": op("hidden n -> pooled", lambda m, x: torch.einsum("bsd,bse->bde", x, x).tanh().mean(-1), 2),
    "heads_mean": op("heads n -> pooled", lambda m, x: x.mean(2).flatten(1), 3),
    "first_mean": op("first n -> pooled", lambda m, x: x.mean(0), 3),
    "channels_mean": op("channels n -> pooled", lambda m, x: x.mean(-1), 3),
    "channels_amax": op("channels n -> pooled", lambda m, x: x.amax(-1), 3),
    "merged_sum": op("merged n -> scalar", lambda m, x: torch.tanh(x).sum(0).sum(), 2),
    "cumsum": rare("hidden n -> hidden n", lambda m, x: x.cumsum(1)),
    "sort": rare("hidden n -> hidden n", lambda m, x: x.sort(1)[0]),
    "topk": rare("hidden n -> few", lambda m, x: x.topk(2, 1)[0]),
    "median": rare("hidden n -> pooled", lambda m, x: x.median(1)[0]),
    "token_matrix": rare("hidden n -> hidden n", lambda m, x: m.matrix[: x.shape[1], : x.shape[1]] @ x),
    "scalar_of_pooled": op("pooled -> scalar", lambda m, x: torch.tanh(x).mean(), 2),
}
