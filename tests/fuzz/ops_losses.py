"""Losses, of the labels or between activations."""

import torch
import torch.nn.functional as F

from tests.fuzz.op import op
from tests.fuzz.parts import VOCAB


def ce(m, x, labels, **options):
    return F.cross_entropy(m.head(x).flatten(0, 1), labels.flatten(), **options)


def padded(labels):
    return F.pad(labels, (0, 1), value=-100)[..., 1:]


def per_token(m, x, labels):
    return F.cross_entropy(m.head(x).transpose(1, 2), labels, reduction="none")


def row_means(m, x, labels):
    loss = F.cross_entropy(m.head(x).view(-1, VOCAB), labels.reshape(-1), reduction="none").view(labels.shape)
    return (loss.sum(1) / (labels != -100).sum(1).clamp(min=1)).mean()


def log_likelihood(m, x, labels):
    log = m.head(x).log_softmax(-1)
    valid = labels != -100
    return -(log.gather(-1, labels.clamp(min=0)[..., None])[..., 0] * valid).sum() / valid.sum()


def z_loss(m, x, labels):
    logits = m.head(x)
    return ce(m, x, labels) + 0.1 * logits.logsumexp(-1).square().mean()


def hits(m, x, labels):
    return (m.head(x).argmax(-1) == labels).sum()


def by_items(m, x, labels):
    return ce(m, x, labels, reduction="sum") / (labels != -100).sum()


def relabelled(m, x, labels, ids):
    y = labels.clone()
    y[:, 0] = -100
    y.masked_fill_(ids == 1, -100)
    y[0, -1] = 2
    return ce(m, x, y)


def tied(m, x, labels):
    logits = x[:, :-1] @ m.e.weight.T
    return F.cross_entropy(logits.reshape(-1, VOCAB), labels[:, 1:].reshape(-1))


def float_mask(m, x, labels):
    mask = (labels[:, 1:] != -100).to(x.dtype)
    log = F.log_softmax(m.head(x)[:, :-1], -1)
    picked = torch.gather(log, 2, labels[:, 1:].clamp(min=0).unsqueeze(2)).squeeze(2)
    return -(picked * mask).sum() / mask.sum().clamp(min=1)


LOSSES = {
    "regression": op("token S, labels S -> scalar", lambda m, x, y: F.mse_loss(x, y.clamp(min=0).to(x.dtype)), 2),
    "ce_relabelled": op("hidden S, labels S, ids S -> scalar", relabelled, 3),
    "ce_tied": op("hidden S, labels S -> scalar", tied, 3),
    "ce_weighted": op("token S, labels S -> scalar", lambda m, x, y: (x * (y >= 0)).sum() / (y >= 0).sum(), 3),
    "ce_two": op("hidden S, labels S -> scalar", lambda m, x, y: ce(m, x, y) + ce(m, m.a(x), padded(y)), 2),
    "ce_float_mask": op("hidden S, labels S -> scalar", float_mask, 2),
    "ce": op("hidden S, labels S -> scalar", ce, 4),
    "ce_sum": op("hidden S, labels S -> scalar", lambda m, x, y: ce(m, x, y, reduction="sum"), 2),
    "ce_shift_both": op("hidden S, labels S -> scalar", lambda m, x, y: ce(m, x[:, :-1], y[:, 1:]), 4),
    "ce_shift_logits": op(
        "hidden S, labels S -> scalar",
        lambda m, x, y: F.cross_entropy(m.head(x)[:, :-1].flatten(0, 1), y[:, 1:].flatten()),
        4,
    ),
    "ce_shift_labels": op("hidden S, labels S -> scalar", lambda m, x, y: ce(m, x, padded(y)), 4),
    "ce_shift_two": op("hidden S, labels S -> scalar", lambda m, x, y: ce(m, x[:, :-2], y[:, 2:], reduction="sum"), 2),
    "ce_roll": op("hidden S, labels S -> scalar", lambda m, x, y: ce(m, x, y.roll(-1, 1)), 2),
    "ce_smooth": op("hidden S, labels S -> scalar", lambda m, x, y: ce(m, x, y, label_smoothing=0.1), 2),
    "ce_weights": op("hidden S, labels S -> scalar", lambda m, x, y: ce(m, x, y, weight=m.weights), 2),
    "ce_both": op(
        "hidden S, labels S -> scalar", lambda m, x, y: ce(m, x, padded(y), weight=m.weights, label_smoothing=0.2), 2
    ),
    "ce_ignore": op("hidden S, ids S -> scalar", lambda m, x, y: ce(m, x, y, ignore_index=3), 2),
    "ce_shorter": op("hidden S-1, labels S -> scalar", lambda m, x, y: ce(m, x, y[:, 1:]), 6),
    "ce_longer": op("hidden S+1, labels S -> scalar", lambda m, x, y: ce(m, x[:, 1:], y), 4),
    "ce_prefixed": op("hidden S+2, labels S -> scalar", lambda m, x, y: ce(m, x, F.pad(y, (2, 0), value=-100)), 5),
    "ce_classes": op("hidden S, labels S -> scalar", lambda m, x, y: F.cross_entropy(m.head(x).mT, y), 2),
    "ce_soft": op("hidden n, hidden n -> scalar", lambda m, x, y: F.cross_entropy(x.mT, y.softmax(-1).mT), 2),
    "nll": op("hidden S, labels S -> scalar", lambda m, x, y: F.nll_loss(m.head(x).log_softmax(-1).mT, y), 2),
    "per_token": op("hidden S, labels S -> token S", per_token, 3),
    "row_means": op("hidden S, labels S -> scalar", row_means, 3),
    "log_likelihood": op("hidden S, labels S -> scalar", log_likelihood, 3),
    "z_loss": op("hidden S, labels S -> scalar", z_loss, 2),
    "hits": op("hidden S, labels S -> scalar", hits, 1),
    "by_items": op("hidden S, labels S -> scalar", by_items, 3),
    "last_ce": op("pooled, labels S -> scalar", lambda m, x, y: F.cross_entropy(m.head(x), y[:, -1].clamp(min=0)), 2),
    "mse": op("hidden n, hidden n -> scalar", lambda m, x, y: F.mse_loss(x, y), 3),
    "mse_sum": op("hidden n, hidden n -> scalar", lambda m, x, y: F.mse_loss(x, y.detach(), reduction="sum"), 1),
    "smooth_l1": op("hidden n, hidden n -> scalar", lambda m, x, y: F.smooth_l1_loss(x, y.detach()), 2),
    "kl": op(
        "hidden n, hidden n -> scalar",
        lambda m, x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        2,
    ),
    "bce": op("token n, flags n -> scalar", lambda m, x, y: F.binary_cross_entropy_with_logits(x, y.to(x.dtype)), 3),
    "cosine": op("hidden n, hidden n -> scalar", lambda m, x, y: 1 - torch.cosine_similarity(x, y, -1).mean(), 2),
    "token_mean": op("token n -> scalar", lambda m, x: x.mean(), 3),
}
