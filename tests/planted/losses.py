"""Planted: losses and averages over tokens that are not alike on all ranks."""

import torch
import torch.nn.functional as F

from tests.planted.planted import Planted


def shifted_labels(m, x, ids, labels):
    logits = m.head(x)[:, :-1]
    return {"loss": F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())}


def labels_shifted_by_padding(m, x, ids, labels):
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    return {"loss": F.cross_entropy(m.head(x).flatten(0, 1), shifted.flatten())}


def labels_shifted_by_roll(m, x, ids, labels):
    return {"loss": F.cross_entropy(m.head(x).flatten(0, 1), labels.roll(-1, 1).flatten())}


def labels_shifted_the_other_way(m, x, ids, labels):
    logits = m.head(x)[:, 1:]
    return {"loss": F.cross_entropy(logits.flatten(0, 1), labels[:, :-1].flatten())}


def logits_against_later_labels(m, x, ids, labels):
    logits = m.head(x)[:, :-2]
    return {"loss": F.cross_entropy(logits.flatten(0, 1), labels[:, 2:].flatten())}


def summed(m, x, ids, labels):
    return {"loss": F.cross_entropy(m.head(x).flatten(0, 1), labels.flatten(), reduction="sum")}


def mean_of_row_means(m, x, ids, labels):
    loss = F.cross_entropy(m.head(x).transpose(1, 2), labels, reduction="none")  # here
    counts = (labels != -100).sum(1)
    return {"loss": (loss.sum(1) / counts).mean()}


def mean_of_row_means_flat(m, x, ids, labels):
    loss = F.cross_entropy(m.head(x).flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
    return {"loss": (loss.sum(1) / (labels != -100).sum(1)).mean()}


def with_class_weights(m, x, ids, labels):
    weight = torch.linspace(1, 2, 11, dtype=x.dtype)
    return {"loss": F.cross_entropy(m.head(x).flatten(0, 1), labels.flatten(), weight)}  # here


def with_label_smoothing(m, x, ids, labels):
    return {"loss": F.cross_entropy(m.head(x).flatten(0, 1), labels.flatten(), label_smoothing=0.1)}  # here


def with_soft_targets(m, x, ids, labels):
    target = m.q(x).flatten(0, 1).softmax(-1)
    return {"loss": F.cross_entropy(m.k(x).flatten(0, 1), target)}  # here


def last_token_only(m, x, ids, labels):
    last = labels[:, -1].clamp(min=0)  # where both rows ignore it the mean is 0 / 0, in the plain model too
    return {"loss": F.cross_entropy(m.head(x[:, -1]), last)}  # here


def by_gather(m, x, ids, labels):
    log = m.head(x).log_softmax(-1)
    picked = log.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # here
    valid = labels != -100
    return {"loss": -(picked * valid).sum() / valid.sum()}


def nll(m, x, ids, labels):
    return {"loss": F.nll_loss(m.head(x).log_softmax(-1).flatten(0, 1), labels.flatten())}  # here


def squared_error(m, x, ids, labels):
    return {"loss": F.mse_loss(m.q(x), x)}  # here


def squared_error_of_shifts(m, x, ids, labels):
    return {"loss": F.mse_loss(m.q(x)[:, :-1], x[:, 1:])}  # here


def smooth_l1(m, x, ids, labels):
    return {"loss": F.smooth_l1_loss(m.q(x), x.detach())}  # here


def binary(m, x, ids, labels):
    target = (labels > 4).to(x.dtype)
    return {"loss": F.binary_cross_entropy_with_logits(x[..., 0], target)}  # here


def divergence(m, x, ids, labels):
    return {"loss": F.kl_div(m.q(x).log_softmax(-1), x.softmax(-1), reduction="batchmean")}  # here


def normalized_by_the_largest(m, x, ids, labels):
    loss = F.cross_entropy(m.head(x).flatten(0, 1), labels.flatten(), reduction="none")
    return {"loss": loss.sum() / loss.max()}  # here


def weighted_by_tokens(m, x, ids, labels):
    weight = (ids + 1).to(x.dtype)
    loss = m.head(x).logsumexp(-1)  # here
    return {"loss": (loss * weight / weight.sum()).sum()}


def contrastive(m, x, ids, labels):
    logits = x[0] @ m.q(x)[0].T  # here
    return {"loss": F.cross_entropy(logits, torch.arange(x.shape[1]))}  # here


def mean_of_all_outputs(m, x, ids, labels):
    return {"loss": m.head(x).mean()}


def ratio_of_means(m, x, ids, labels):
    return {"loss": m.q(x).mean() / (1 + m.k(x).square().mean())}


def product_of_sums(m, x, ids, labels):
    return {"loss": m.q(x).sum() * m.k(x).sum(1).square().sum()}


def loss_fed_back(m, x, ids, labels):
    loss = F.cross_entropy(m.head(x).flatten(0, 1), labels.flatten())
    return {"loss": loss, "x": m.q(x) * loss}


def standard_error(m, x, ids, labels):
    return {"loss": m.q(x).var()}  # here


def root_mean_square(m, x, ids, labels):
    return {"loss": m.q(x).square().mean().sqrt(), "scaled": x / x.square().mean((1, 2), keepdim=True).sqrt()}


def connectionist(m, x, ids, labels):
    log = m.head(x).log_softmax(-1).transpose(0, 1)
    lengths = torch.full((x.shape[0],), x.shape[1])
    return {"loss": F.ctc_loss(log, ids[:, :3].clamp(min=1), lengths, torch.full((x.shape[0],), 3))}  # here


def accuracy(m, x, ids, labels):
    return {"hits": (m.head(x).argmax(-1) == labels).sum()}  # here


CE = r"aten\.(cross_entropy_loss|nll_loss|nll_loss_nd)"

LOSSES = (
    *(Planted(way, "exact") for way in (shifted_labels, labels_shifted_by_padding, labels_shifted_by_roll, summed)),
    *(Planted(way, "exact") for way in (labels_shifted_the_other_way, logits_against_later_labels)),
    Planted(mean_of_row_means, CE),
    Planted(mean_of_row_means_flat, "exact"),
    *(Planted(way, CE) for way in (with_class_weights, with_label_smoothing, with_soft_targets, nll)),
    Planted(last_token_only, r"aten\.select"),
    Planted(by_gather, r"aten\.gather"),
    Planted(squared_error, r"aten\.(mse_loss|broadcast_tensors)"),
    Planted(squared_error_of_shifts, r"aten\.(mse_loss|broadcast_tensors)"),
    Planted(smooth_l1, r"aten\.(smooth_l1_loss|broadcast_tensors)"),
    Planted(binary, r"aten\.binary_cross_entropy_with_logits"),
    Planted(divergence, r"aten\.(kl_div|div|sum)"),
    Planted(normalized_by_the_largest, r"aten\.max"),
    Planted(weighted_by_tokens, r"aten\.logsumexp"),
    Planted(contrastive, r"aten\.(matmul|select|numpy_T)"),
    *(Planted(way, "exact") for way in (mean_of_all_outputs, ratio_of_means, product_of_sums, loss_fed_back)),
    Planted(standard_error, r"aten\.var"),
    Planted(root_mean_square, "exact"),
    Planted(connectionist, r"aten\.(ctc_loss|transpose)|cannot trace"),
    Planted(accuracy, r"aten\.argmax"),
)
