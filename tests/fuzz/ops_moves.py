"""Ops that change which tokens there are: slices, pads, joins, shifts, rolls, convolutions, single positions."""

import torch
import torch.nn.functional as F

from tests.fuzz.op import op, rare


def shift(m, x):
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def token_shift(m, x):
    y = F.pad(x, (0, 0, 1, -1))
    return torch.lerp(x, y, torch.sigmoid(m.prefix[0, 0]))


def expand_prefix(m, x):
    return m.prefix.expand(x.shape[0], -1, -1)


def conv_causal(m, x):
    y = F.conv1d(F.pad(x.transpose(1, 2), (2, 0)), m.each.weight, m.each.bias, groups=x.shape[2])
    return F.silu(y).transpose(1, 2)


def conv_cut(m, x):
    y = F.conv1d(x.transpose(1, 2), m.each.weight, None, padding=2, groups=x.shape[2])
    return y[..., : x.shape[1]].transpose(1, 2)


def dilated(m, x):
    return F.conv1d(x.mT, m.cross.weight, m.cross.bias, padding="same", dilation=2).mT


def last_valid(m, x, ids):
    last = ((ids != 0).sum(1) - 1).clamp(min=0)
    return x[torch.arange(x.shape[0]), last]


def last_valid_gather(m, x, ids):
    last = (ids.ne(1).sum(1) - 1).clamp(min=0)
    return x.gather(1, last.view(-1, 1, 1).expand(-1, 1, x.shape[2])).squeeze(1)


MOVES = {
    "half": rare("hidden n -> pooled", lambda m, x: x[:, : x.shape[1] // 2].sum(1)),
    "later_half": rare("hidden n -> pooled", lambda m, x: x[:, x.shape[1] // 2 :].sum(1)),
    "chunk_along": rare("hidden n -> pooled", lambda m, x: x.chunk(2, 1)[1].mean(1)),
    "repeat_along": rare("hidden n -> hidden 2n", lambda m, x: x.repeat(1, 2, 1)),
    "first_spread": op("hidden n -> hidden n", lambda m, x: x * x[:, :1].expand(-1, x.shape[1], -1), 2),
    "slice_twice": op("hidden n -> hidden n-2", lambda m, x: x[:, 1:][:, :-1], 2),
    "slice_and_select": op("hidden n -> pooled", lambda m, x: x[:, 2:][:, 0] + x[:, :-1][:, -1], 2),
    "pad_and_cut": op("hidden n -> hidden n", lambda m, x: F.pad(x, (0, 0, 1, 1))[:, :-2], 2),
    "index_list": rare("hidden n -> few", lambda m, x: x[:, [0, -1]]),
    "neighbours": op("hidden n -> hidden n-2", lambda m, x: x[:, :-2] + 2 * x[:, 1:-1] - x[:, 2:], 2),
    "windows": rare("hidden n -> hidden n-1", lambda m, x: x.unfold(1, 2, 1).mean(-1)),
    "drop_first": op("hidden n -> hidden n-1", lambda m, x: x[:, 1:], 5),
    "drop_last": op("hidden n -> hidden n-1", lambda m, x: x[:, :-1], 5),
    "drop_two": op("hidden n -> hidden n-2", lambda m, x: x[:, 2:], 2),
    "drop_last_two": op("hidden n -> hidden n-2", lambda m, x: x[:, :-2], 2),
    "drop_both": op("hidden n -> hidden n-2", lambda m, x: x[:, 1:-1], 2),
    "narrow": op("hidden n -> hidden n-1", lambda m, x: x.narrow(1, 1, x.shape[1] - 1), 2),
    "split": op("hidden n -> hidden n-1", lambda m, x: x.split([1, x.shape[1] - 1], 1)[1], 1),
    "prefix_of": op("hidden n -> few", lambda m, x: x[:, :2], 3),
    "prefix_later": op("hidden n -> few", lambda m, x: x[:, 1:3], 2),
    "suffix_of": op("hidden n -> few", lambda m, x: x[:, -2:], 3),
    "first": op("hidden n -> pooled", lambda m, x: x[:, 0], 3),
    "second": op("hidden n -> pooled", lambda m, x: x[:, 1], 2),
    "last": op("hidden n -> pooled", lambda m, x: x[:, -1], 3),
    "last_but_one": op("hidden n -> pooled", lambda m, x: x.select(1, -2), 2),
    "last_kept": op("hidden n -> hidden n", lambda m, x: x - x[:, -1:], 2),
    "strided": rare("hidden n -> few", lambda m, x: x[:, ::2][:, :2]),
    "pad_left": op("hidden n -> hidden n+1", lambda m, x: F.pad(x, (0, 0, 1, 0)), 3),
    "pad_right": op("hidden n -> hidden n+2", lambda m, x: F.pad(x, (0, 0, 0, 2), value=0.5), 3),
    "pad_both": op("hidden n -> hidden n+3", lambda m, x: F.pad(x, (0, 0, 2, 1)), 2),
    "pad_channels": op("channels n -> channels n+1", lambda m, x: F.pad(x, (1, 0), value=-1.0), 3),
    "crop": op("hidden n -> hidden n-1", lambda m, x: F.pad(x, (0, 0, -2, 1)), 1),
    "join_prefix": op("hidden n -> hidden n+2", lambda m, x: torch.cat([expand_prefix(m, x), x], 1), 4),
    "join_class": op("hidden n -> hidden n+1", lambda m, x: torch.cat([expand_prefix(m, x)[:, :1], x], 1), 4),
    "join_suffix": op("hidden n -> hidden n+2", lambda m, x: torch.cat([x, expand_prefix(m, x)], 1), 3),
    "join_middle": op(
        "hidden n, hidden k -> hidden n+k+2", lambda m, x, y: torch.cat([x, expand_prefix(m, x), y], 1), 2
    ),
    "join_self": op("hidden n -> hidden 2n", lambda m, x: torch.cat([x, m.a(x)], 1), 2),
    "join": op("hidden n, hidden k -> hidden n+k", lambda m, x, y: torch.cat([x, y], 1), 3),
    "join_few": op("hidden n, few -> hidden n+2", lambda m, x, y: torch.cat([y, x], 1), 3),
    "join_pooled": op("hidden n, pooled -> hidden n+1", lambda m, x, y: torch.cat([x, y[:, None]], 1), 2),
    "cut_to": op("hidden n, hidden 2n -> hidden n", lambda m, x, y: x + y[:, : x.shape[1]], 1),
    "heads_drop": op("heads n -> heads n-1", lambda m, x: x[:, :, 1:], 3),
    "heads_drop_last": op("heads n -> heads n-1", lambda m, x: x[:, :, :-1], 3),
    "first_drop": op("first n -> first n-1", lambda m, x: x[1:], 3),
    "token_drop": op("token n -> token n-1", lambda m, x: x[:, :-1], 3),
    "token_pad": op("token n -> token n+1", lambda m, x: F.pad(x, (1, 0), value=1.0), 3),
    "merged_drop": rare("merged n -> merged n", lambda m, x: torch.cat([x[1:], x[:1]])),
    "roll": op("hidden n -> hidden n", lambda m, x: x.roll(1, 1), 3),
    "roll_back": op("hidden n -> hidden n", lambda m, x: torch.roll(x, -2, 1), 2),
    "roll_all": rare("hidden n -> hidden n", lambda m, x: x.roll(3)),
    "shift": op("hidden n -> hidden n", shift, 3),
    "token_shift": op("hidden n -> hidden n", token_shift, 3),
    "difference": op("hidden n -> hidden n-1", lambda m, x: x[:, 1:] - x[:, :-1], 3),
    "diff": rare("hidden n -> hidden n-1", lambda m, x: x.diff(dim=1)),
    "flip": rare("hidden n -> hidden n", lambda m, x: x.flip(1)),
    "reflect": rare("channels n -> channels n+2", lambda m, x: F.pad(x, (1, 1), mode="reflect")),
    "each_conv": op("channels n -> channels n", lambda m, x: m.each(x), 4),
    "cross_conv": op("channels n -> channels n+2", lambda m, x: m.cross(x), 4),
    "valid_conv": op("channels n -> channels n-1", lambda m, x: m.valid(x), 3),
    "conv_causal": op("hidden n -> hidden n", conv_causal, 4),
    "conv_cut": op("hidden n -> hidden n", conv_cut, 3),
    "dilated": op("hidden n -> hidden n", dilated, 2),
    "last_valid": op("hidden S, ids S -> pooled", last_valid, 3),
    "last_valid_gather": op("hidden S, ids S -> pooled", last_valid_gather, 3),
    "avg_pool": rare("channels n -> channels n", lambda m, x: F.avg_pool1d(x, 3, 1, 1)),
}
