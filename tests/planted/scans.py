"""Planted: what runs along the sequence, orders it, or folds it up."""

import torch
import torch.nn.functional as F

from tests.planted.planted import D, Planted


def cumsum(m, x, ids, labels):
    return x.cumsum(1)  # here


def cumprod(m, x, ids, labels):
    return x.cumprod(1)  # here


def cummax(m, x, ids, labels):
    return x.cummax(1).values  # here


def logcumsumexp(m, x, ids, labels):
    return x.logcumsumexp(1)  # here


def diff(m, x, ids, labels):
    return x.diff(dim=1)  # here


def sort(m, x, ids, labels):
    return x.sort(1).values  # here


def argsort_of_scores(m, x, ids, labels):
    order = x[..., 0].argsort(1)  # here
    return x.gather(1, order.unsqueeze(-1).expand_as(x))  # here


def flip(m, x, ids, labels):
    return x.flip(1)  # here


def roll(m, x, ids, labels):
    return x.roll(1, 1)  # here


def roll_by_cat(m, x, ids, labels):
    return torch.cat([x[:, -1:], x[:, :-1]], 1)  # here


def topk(m, x, ids, labels):
    return x.topk(3, 1).values  # here


def kthvalue(m, x, ids, labels):
    return x.kthvalue(2, 1).values  # here


def amax(m, x, ids, labels):
    return x.amax(1)  # here


def max_with_index(m, x, ids, labels):
    value, index = x.max(1)  # here
    return value * index  # here


def argmax(m, x, ids, labels):
    return x.argmax(1)  # here


def minimum(m, x, ids, labels):
    return x - x.min(1, keepdim=True).values  # here


def median(m, x, ids, labels):
    return x.median(1).values  # here


def mean(m, x, ids, labels):
    return x - x.mean(1, keepdim=True)  # here


def mean_of_all(m, x, ids, labels):
    return x / x.square().mean()  # here


def std(m, x, ids, labels):
    return x / x.std(1, keepdim=True)  # here


def var_mean(m, x, ids, labels):
    var, mean = torch.var_mean(x, 1, keepdim=True)  # here
    return (x - mean) / (var + 1).sqrt()  # here


def total(m, x, ids, labels):
    return x.sum(1)  # here


def product(m, x, ids, labels):
    return x.prod(1)  # here


def logsumexp(m, x, ids, labels):
    return x.logsumexp(1)  # here


def norm(m, x, ids, labels):
    return x / x.norm(dim=1, keepdim=True)  # here


def infinity_norm(m, x, ids, labels):
    return x / torch.linalg.vector_norm(x, float("inf"), 1, keepdim=True)  # here


def normalize(m, x, ids, labels):
    return F.normalize(x, dim=1)  # here


def softmax(m, x, ids, labels):
    return x.softmax(1)  # here


def softmax_of_gates(m, x, ids, labels):
    return (m.q(x)[..., :1].softmax(1) * x).sum(1)  # here


def log_softmax(m, x, ids, labels):
    return x.log_softmax(1)  # here


def layer_norm_over_tokens(m, x, ids, labels):
    return F.layer_norm(x.transpose(1, 2), (x.shape[1],))  # here


def any_token(m, x, ids, labels):
    return x * (x > 0.5).any(1, keepdim=True)  # here


def count_of_positive(m, x, ids, labels):
    return x / (1 + (x > 0).sum(1, keepdim=True))  # here


def unique(m, x, ids, labels):
    return x * torch.unique(ids).numel()  # here


def searchsorted(m, x, ids, labels):
    return torch.searchsorted(x.detach().transpose(1, 2).contiguous(), x.detach().transpose(1, 2).contiguous())  # here


def running_mean(m, x, ids, labels):
    count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    return x.cumsum(1) / count[:, None]  # here


def linear_attention(m, x, ids, labels):
    """Causal: the state after each token is a sum over all tokens before it."""
    state = (m.k(x).unsqueeze(-1) * m.v(x).unsqueeze(-2)).cumsum(1)  # here
    return torch.einsum("bsd,bsde->bse", m.q(x), state)


def linear_attention_over_all(m, x, ids, labels):
    state = m.k(x).transpose(1, 2) @ m.v(x)  # here
    return m.q(x) @ state  # here


def squeeze_excite(m, x, ids, labels):
    return x * m.q(x.mean(1)).sigmoid().unsqueeze(1)  # here


def state_by_a_loop(m, x, ids, labels):
    state, states = x.new_zeros(x.shape[0], D), []
    for token in x.unbind(1):  # here
        state = (state + token).tanh()
        states.append(state)
    return torch.stack(states, 1)


def state_by_a_loop_over_range(m, x, ids, labels):
    state = x[:, 0]  # here
    for position in range(x.shape[1]):  # here
        state = (state + x[:, position]).tanh()  # here
    return state


def rnn(m, x, ids, labels):
    return m.part(x)[0]  # here


def gru(m, x, ids, labels):
    return m.part(x)[0]  # here


def lstm(m, x, ids, labels):
    return m.part(x)[0]  # here


def recurrent(kind):
    return lambda: {"part": kind(D, D, batch_first=True)}


LOOP = r"aten\.(unbind|select)|fixes its sequence length"

SCANS = (
    *(Planted(way, rf"aten\.{way.__name__}\b") for way in (cumsum, cumprod, cummax, logcumsumexp, sort, flip, roll)),
    *(Planted(way, rf"aten\.{way.__name__}\b") for way in (topk, kthvalue, amax, argmax, median, mean, std, var_mean)),
    *(Planted(way, rf"aten\.{way.__name__}\b") for way in (logsumexp, softmax, log_softmax, searchsorted)),
    Planted(diff, r"aten\.(diff|slice|sub|narrow)"),
    Planted(argsort_of_scores, r"aten\.(arg)?sort"),
    Planted(roll_by_cat, r"aten\.(slice|cat)"),
    Planted(max_with_index, r"aten\.max"),
    Planted(minimum, r"aten\.min"),
    Planted(mean_of_all, r"aten\.mean"),
    Planted(total, r"aten\.sum"),
    Planted(product, r"aten\.prod"),
    Planted(norm, r"aten\.(linalg_vector_)?norm"),
    Planted(infinity_norm, r"aten\.linalg_vector_norm"),
    Planted(normalize, r"aten\.(linalg_vector_)?norm"),
    Planted(softmax_of_gates, r"aten\.softmax"),
    Planted(layer_norm_over_tokens, r"aten\.layer_norm"),
    Planted(any_token, r"aten\.any"),
    Planted(count_of_positive, r"aten\.sum"),
    Planted(unique, r"aten\._?unique|cannot trace"),
    Planted(running_mean, r"aten\.cumsum"),
    Planted(linear_attention, r"aten\.cumsum"),
    Planted(linear_attention_over_all, r"aten\.(matmul|bmm)"),
    Planted(squeeze_excite, r"aten\.mean"),
    Planted(state_by_a_loop, LOOP),
    Planted(state_by_a_loop_over_range, LOOP, slow=True),
    Planted(rnn, r"aten\.rnn|fixes its sequence length", recurrent(torch.nn.RNN)),
    Planted(gru, r"aten\.gru|fixes its sequence length", recurrent(torch.nn.GRU), slow=True),
    Planted(lstm, r"aten\.lstm|fixes its sequence length", recurrent(torch.nn.LSTM), slow=True),
)
