"""Planted: tokens mixed with their neighbours, with all others, or by an index that is computed."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.planted.planted import D, Planted


def conv_over_features(m, x, ids, labels):
    return m.part(x)  # here


def conv_causal_depthwise(m, x, ids, labels):
    return m.part(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)  # here


def conv_full(m, x, ids, labels):
    return m.part(x.transpose(1, 2)).transpose(1, 2)  # here


def conv_strided(m, x, ids, labels):
    return m.part(x.transpose(1, 2)).transpose(1, 2)  # here


def conv_transposed(m, x, ids, labels):
    return m.part(x.transpose(1, 2)).transpose(1, 2)  # here


def conv_of_one(m, x, ids, labels):
    return m.part(x.transpose(1, 2)).transpose(1, 2)  # here


def conv_2d(m, x, ids, labels):
    return m.part(x.unsqueeze(1)).squeeze(1)  # here


def avg_pool(m, x, ids, labels):
    return F.avg_pool1d(x.transpose(1, 2), 3, 1, 1)  # here


def max_pool(m, x, ids, labels):
    return F.max_pool1d(x.transpose(1, 2), 2)  # here


def adaptive_pool(m, x, ids, labels):
    return F.adaptive_avg_pool1d(x.transpose(1, 2), 1)  # here


def interpolate(m, x, ids, labels):
    return F.interpolate(x.transpose(1, 2), scale_factor=2)  # here


def interpolate_linear(m, x, ids, labels):
    return F.interpolate(x.transpose(1, 2), size=7, mode="linear")  # here


def sliding_windows(m, x, ids, labels):
    return x.unfold(1, 3, 1).mean(-1)  # here


def strided_windows(m, x, ids, labels):
    return F.pad(x, (0, 0, 2, 0)).unfold(1, 3, 1).amax(-1)  # here


def token_mixing_linear(m, x, ids, labels):
    return m.part(x.transpose(1, 2)).transpose(1, 2)  # here


def learned_matrix(m, x, ids, labels):
    n = x.shape[1]
    return m.w[:n, :n] @ x  # here


def learned_matrix_einsum(m, x, ids, labels):
    n = x.shape[1]
    return torch.einsum("ts,bsd->btd", m.w[:n, :n], x)  # here


def gram_of_features(m, x, ids, labels):
    return torch.einsum("bsd,bse->bde", x, x)  # here


def everybody_with_everybody(m, x, ids, labels):
    return torch.einsum("bsd,btd->b", x, x)  # here


def outer_product(m, x, ids, labels):
    return (x.unsqueeze(1) * x.unsqueeze(2)).sum(1)  # here


def distances(m, x, ids, labels):
    return torch.cdist(x, x).sum(1)  # here


def covariance(m, x, ids, labels):
    return torch.cov(x[0].T)  # here


def triangle(m, x, ids, labels):
    return torch.triu(x @ x.transpose(1, 2)) @ x  # here


def attention_by_hand(m, x, ids, labels):
    n = x.shape[1]
    scores = m.q(x) @ m.k(x).transpose(1, 2)  # here
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))  # here
    return scores.softmax(-1) @ m.v(x)  # here


def fourier(m, x, ids, labels):
    return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=1).real  # here


def fourier_filter(m, x, ids, labels):
    n = x.shape[1]
    kernel = torch.fft.rfft(m.p[:n], n=2 * n, dim=0)  # here
    return torch.fft.irfft(torch.fft.rfft(x, n=2 * n, dim=1) * kernel, n=2 * n, dim=1)[:, :n]  # here


def segment_sums(m, x, ids, labels):
    return x.new_zeros(x.shape[0], 11, D).scatter_add(1, ids.unsqueeze(-1).expand_as(x), x)  # here


def segment_sums_index_add(m, x, ids, labels):
    return x.new_zeros(11, D).index_add(0, ids.flatten(), x.flatten(0, 1))  # here


def segment_sums_one_hot(m, x, ids, labels):
    return F.one_hot(ids, 11).to(x.dtype).transpose(1, 2) @ x  # here


def counts_of_ids(m, x, ids, labels):
    return x * torch.bincount(ids.flatten(), minlength=11)[ids].unsqueeze(-1)  # here


def gather_by_ids(m, x, ids, labels):
    index = (ids % x.shape[1]).unsqueeze(-1).expand_as(x)  # here
    return x.gather(1, index)  # here


def gather_backwards(m, x, ids, labels):
    back = x.shape[1] - 1 - torch.arange(x.shape[1])
    return x[:, back]  # here


def previous_by_index(m, x, ids, labels):
    before = (torch.arange(x.shape[1]) - 1).clamp(min=0)
    return x.index_select(1, before)  # here


def shuffled(m, x, ids, labels):
    return x[:, torch.randperm(x.shape[1])]  # here


def nonzero(m, x, ids, labels):
    return x[0, torch.nonzero(ids[0] > 3).squeeze(1)]  # here


def masked_select(m, x, ids, labels):
    return torch.masked_select(x, (ids > 3).unsqueeze(-1)).sum()  # here


def boolean_index(m, x, ids, labels):
    return x[ids > 3].mean(0)  # here


def boolean_assignment(m, x, ids, labels):
    x = x.clone()
    x[ids > 3] = 0  # here
    return x


def mixture_of_experts(m, x, ids, labels):
    flat = x.flatten(0, 1)
    chosen = m.q(flat).argmax(-1)  # here
    out = torch.zeros_like(flat)
    for expert, layer in enumerate((m.k, m.v)):
        rows = torch.nonzero(chosen == expert).squeeze(1)  # here
        out = out.index_add(0, rows, layer(flat[rows]))  # here
    return out.view_as(x)


def load_balance(m, x, ids, labels):
    gates = m.q(x).softmax(-1)
    share = F.one_hot(gates.argmax(-1), D).to(x.dtype).mean((0, 1))  # here
    return x * (share * gates.mean((0, 1))).sum()  # here


def batch_norm(m, x, ids, labels):
    return m.part(x.transpose(1, 2)).transpose(1, 2)  # here


def batch_norm_without_statistics(m, x, ids, labels):
    return m.part(x.transpose(1, 2)).transpose(1, 2)  # here


def batch_norm_of_eval(m, x, ids, labels):
    return m.part(x.transpose(1, 2)).transpose(1, 2)  # here


def group_norm(m, x, ids, labels):
    return m.part(x.transpose(1, 2)).transpose(1, 2)  # here


def instance_norm(m, x, ids, labels):
    return F.instance_norm(x.transpose(1, 2))  # here


def bag_of_embeddings(m, x, ids, labels):
    return x + m.part(ids).unsqueeze(1)  # here


def convolution(*args, **kwargs):
    return lambda: {"part": nn.Conv1d(D, D, *args, **kwargs)}


FIXED = "fixes its sequence length"
CONV = r"aten\.conv"
BORN = r"aten\.(matmul|einsum|mul|bmm|baddbmm)"

MIXING = (
    Planted(conv_over_features, FIXED, lambda: {"part": nn.Conv1d(12, 12, 3, padding=1)}),
    Planted(conv_causal_depthwise, r"aten\.(conv|slice)", convolution(3, padding=2, groups=D)),
    Planted(conv_full, CONV, convolution(3, padding=1)),
    Planted(conv_strided, CONV, convolution(2, stride=2)),
    Planted(conv_transposed, CONV, lambda: {"part": nn.ConvTranspose1d(D, D, 2, 2)}),
    Planted(conv_of_one, CONV, convolution(1)),
    Planted(conv_2d, CONV, lambda: {"part": nn.Conv2d(1, 1, 3, padding=1)}),
    Planted(avg_pool, r"aten\.avg_pool1d"),
    Planted(max_pool, rf"aten\.max_pool1d|{FIXED}"),
    Planted(adaptive_pool, r"aten\.(adaptive_avg_pool1d|mean)"),
    Planted(interpolate, r"aten\.upsample"),
    Planted(interpolate_linear, r"aten\.upsample"),
    Planted(sliding_windows, r"aten\.unfold"),
    Planted(strided_windows, r"aten\.(pad|unfold)"),
    Planted(token_mixing_linear, FIXED, lambda: {"part": nn.Linear(12, 12)}),
    Planted(learned_matrix, r"aten\.(matmul|slice)"),
    Planted(learned_matrix_einsum, r"aten\.(einsum|slice)"),
    Planted(gram_of_features, r"aten\.(einsum|bmm)"),
    Planted(everybody_with_everybody, r"aten\.(einsum|bmm)"),
    Planted(outer_product, BORN),
    Planted(distances, r"aten\.(_?cdist|cdist_forward|_euclidean_dist)"),
    Planted(covariance, r"aten\.cov|cannot trace"),
    Planted(triangle, r"aten\.matmul"),
    Planted(attention_by_hand, r"aten\.matmul"),
    Planted(fourier, r"aten\.fft_fft"),
    Planted(fourier_filter, r"aten\.fft_rfft|finds no range", placed=False),
    Planted(segment_sums, r"aten\.(expand_as|scatter_add)"),
    Planted(segment_sums_index_add, r"aten\.index_add"),
    Planted(segment_sums_one_hot, r"aten\.(one_hot|matmul)"),
    Planted(counts_of_ids, r"aten\.bincount|cannot trace"),
    Planted(gather_by_ids, r"aten\.(expand_as|gather)"),
    Planted(gather_backwards, r"aten\.index"),
    Planted(previous_by_index, r"aten\.index_select"),
    Planted(shuffled, r"aten\.randperm"),
    Planted(nonzero, r"aten\.(nonzero|select|index)|cannot trace"),
    Planted(masked_select, r"aten\.masked_select|cannot trace"),
    Planted(boolean_index, r"aten\.(index|nonzero)|cannot trace"),
    Planted(boolean_assignment, r"aten\.index_put"),
    Planted(mixture_of_experts, r"aten\.(argmax|nonzero|index)|cannot trace"),
    Planted(load_balance, r"aten\.(mean|one_hot|argmax)"),
    Planted(batch_norm, r"aten\.(add_|batch_norm|_native_batch_norm)", lambda: {"part": nn.BatchNorm1d(D)}),
    Planted(
        batch_norm_without_statistics,
        r"aten\.batch_norm",
        lambda: {"part": nn.BatchNorm1d(D, track_running_stats=False)},
    ),
    Planted(batch_norm_of_eval, r"aten\.batch_norm", lambda: {"part": nn.BatchNorm1d(D)}, train=False),
    Planted(group_norm, r"aten\.group_norm", lambda: {"part": nn.GroupNorm(2, D)}),
    Planted(instance_norm, r"aten\.instance_norm"),
    Planted(bag_of_embeddings, r"aten\.embedding_bag", lambda: {"part": nn.EmbeddingBag(11, D, mode="mean")}),
)
