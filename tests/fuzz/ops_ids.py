"""The index domain: ids and positions, whole on every rank, and where they meet activations."""

import torch
import torch.nn.functional as F

from tests.fuzz.op import op, rare
from tests.fuzz.parts import VOCAB


def embedded_positions(m, ids):
    return m.positions[torch.arange(ids.shape[1])].expand(ids.shape[0], -1, -1)


def running_positions(m, ids):
    """Positions that skip padding, as OPT and RoBERTa count them."""
    at = (ids != 0).cumsum(1) * (ids != 0)
    return F.embedding(at, m.positions)


def documents(m, ids):
    return m.e((ids == 0).cumsum(-1) % VOCAB)


def sinusoids(m, x):
    at = torch.arange(x.shape[1], dtype=x.dtype)
    return x + torch.sin(at[:, None] * m.rms.weight)


def alibi_like(m, x):
    return x * torch.exp(-0.1 * torch.arange(x.shape[1]).to(x.dtype))[None, :, None]


def reversed_positions(m, x):
    return x + m.e(torch.arange(x.shape[1]).flip(0) % VOCAB)


def bias_of_ids(m, x, ids):
    return x + F.one_hot(ids, VOCAB).to(x.dtype) @ m.e.weight


def segment_sums(m, x, ids):
    return (F.one_hot(ids, VOCAB).to(x.dtype).mT @ x).tanh().sum(1)


def segment_add(m, x, ids):
    sums = x.new_zeros(VOCAB, x.shape[2]).index_add(0, ids.flatten(), x.flatten(0, 1))
    return torch.tanh(sums[:1] + sums[1:2]).expand(x.shape[0], -1)


def ids_changed(m, ids):
    ids = ids.clone()
    ids[:, 0] = 1
    ids[ids == 3] = 0
    ids[:, 1:] += ids[:, :-1].clone()
    return ids % VOCAB


def flags_changed(m, flags):
    flags = flags.clone()
    flags[:, 0] = True
    flags.logical_not_()
    return flags


IDS = {
    "segment_sums": op("hidden n, ids n -> pooled", segment_sums, 2),
    "segment_add": rare("hidden n, ids n -> pooled", segment_add),
    "gather_feature": op("hidden n, ids n -> token n", lambda m, x, ids: x.gather(-1, ids[..., None])[..., 0], 2),
    "scatter_feature": op("hidden n, ids n -> hidden n", lambda m, x, i: x.scatter(-1, i[..., None], 0.5), 2),
    "ids_changed": op("ids n -> ids n", ids_changed, 2),
    "ids_total": op("hidden n, ids k -> hidden n", lambda m, x, ids: x * (ids.sum(1) % 3)[:, None, None], 2),
    "ids_scale": op("hidden n, ids n -> hidden n", lambda m, x, ids: x / (1.0 + ids)[..., None], 2),
    "ids_chosen": rare("hidden n, ids n -> scalar", lambda m, x, ids: x[ids == 3].sum()),
    "far": op("ids n -> flags n", lambda m, ids: torch.arange(ids.shape[1]).flip(0).expand_as(ids) > 2, 2),
    "flags_changed": op("flags n -> flags n", flags_changed, 2),
    "embed": op("ids n -> hidden n", lambda m, ids: m.e(ids), 12),
    "embed_again": op("ids n -> hidden n", lambda m, ids: m.norm(m.e(ids)) + m.positions[: ids.shape[1]], 6),
    "one_hot": op("ids n -> hidden n", lambda m, ids: F.one_hot(ids, VOCAB).to(m.a.weight.dtype) @ m.e.weight, 2),
    "table": op("ids n -> hidden n", lambda m, ids: m.e.weight[ids], 2),
    "embedded_positions": op("ids n -> hidden n", embedded_positions, 3),
    "running_positions": op("ids n -> hidden n", running_positions, 3),
    "documents": op("ids n -> hidden n", documents, 2),
    "sinusoids": op("hidden n -> hidden n", sinusoids, 3),
    "alibi_like": op("hidden n -> hidden n", alibi_like, 3),
    "reversed_positions": op("hidden n -> hidden n", reversed_positions, 2),
    "bias_of_ids": op("hidden n, ids n -> hidden n", bias_of_ids, 2),
    "ids_next": op("ids n -> ids n", lambda m, ids: F.pad(ids[:, 1:], (0, 1)), 2),
    "ids_roll": op("ids n -> ids n", lambda m, ids: ids.roll(1, -1), 2),
    "ids_flip": op("ids n -> ids n", lambda m, ids: ids.flip(1), 1),
    "ids_cumsum": op("ids n -> ids n", lambda m, ids: ids.cumsum(1) % VOCAB, 2),
    "ids_sort": op("ids n -> ids n", lambda m, ids: ids.sort(1)[0], 1),
    "ids_cut": op("ids n -> ids n-1", lambda m, ids: ids[:, :-1], 2),
    "ids_longer": op("ids n -> ids n+1", lambda m, ids: F.pad(ids, (1, 0), value=2), 2),
    "ids_max": op("ids n -> ids n", lambda m, ids: (ids + ids.amax(1, keepdim=True)) % VOCAB, 1),
    "ids_every_other": op(
        "ids n, hidden n -> hidden n", lambda m, ids, x: x + m.e(ids[:, ::2]).sum(1, keepdim=True), 1
    ),
    "ids_relative": rare(
        "ids n, hidden n -> hidden n", lambda m, ids, x: (ids[:, :, None] == ids[:, None]).to(x.dtype) @ x
    ),
    "known": op("ids n -> flags n", lambda m, ids: ids != 0, 5),
    "starts": op("ids n -> flags n", lambda m, ids: F.pad(ids[:, 1:] == ids[:, :-1], (1, 0), value=True), 3),
    "early": op("ids n -> flags n", lambda m, ids: (torch.arange(ids.shape[1]) < 4).expand_as(ids), 2),
    "even": op("ids n -> flags n", lambda m, ids: (torch.arange(ids.shape[1]) % 2 == 0) | (ids > 3), 2),
    "before": op("ids n -> flags n", lambda m, ids: (ids == 1).cumsum(1) == 0, 2),
    "either": op("flags n, flags n -> flags n", lambda m, a, b: a ^ b, 1),
    "mask_fill": op("hidden n, flags n -> hidden n", lambda m, x, flags: x.masked_fill(flags[..., None], 0.25), 4),
    "mask_where": op(
        "hidden n, flags n -> hidden n", lambda m, x, f: torch.where(f.unsqueeze(-1), x, m.prefix[:, :1]), 4
    ),
    "mask_both": op("hidden n, hidden n, flags n -> hidden n", lambda m, x, y, f: torch.where(f[..., None], x, y), 3),
    "mask_scale": op("hidden n, flags n -> hidden n", lambda m, x, flags: x * flags.to(x.dtype).unsqueeze(-1), 3),
    "mask_token": op("token n, flags n -> token n", lambda m, x, flags: x.masked_fill(~flags, -3.0), 3),
    "share_known": op("hidden n, flags n -> hidden n", lambda m, x, f: x * f.to(x.dtype).mean(1)[:, None, None], 2),
}
