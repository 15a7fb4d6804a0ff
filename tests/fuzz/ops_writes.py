"""Changes in place."""

import torch

from tests.fuzz.op import op, rare


def add_in_place(m, x, y):
    x = m.a(x)
    x += y
    return x


def write_tail(m, x, y):
    x = m.a(x)
    x[:, 1:] = y[:, :-1]
    return x


def write_first(m, x):
    x = x.clone()
    x[:, 0] = m.prefix[0, 0]
    return x


def write_last(m, x):
    x = x * 2
    x[:, -1] = 0.0
    return x


def write_features(m, x):
    x = x.clone()
    x[..., :2] = x[..., 2:4] * 0.5
    return x


def scale_tail(m, x):
    x = m.b(x)
    x[:, 1:].mul_(0.5)
    return x


def fill(m, x, flags):
    x = m.b(x)
    x.masked_fill_(flags.unsqueeze(-1), 0.1)
    return x


def view_and_change(m, x):
    x = m.a(x)
    y = x.view(-1, x.shape[-1])
    y.add_(1.0)
    return x * y.view_as(x)


def read_then_change(m, x):
    x = m.c(x)
    before = x[:, 1:] * 1.0
    x[:, :-1] += before
    return x


def change_then_read_view(m, x):
    x = m.c(x)
    tail = x[:, 1:]
    x.tanh_()
    return tail


def put_where(m, x, flags):
    x = x.clone()
    x[flags] = 0.0
    return x


def accumulate(m, x):
    out = torch.zeros_like(x)
    for part in (m.a, m.b):
        out += part(x).tanh()
    return out


def new_zeros(m, x):
    out = x.new_zeros(x.shape[0], x.shape[1] + 1, x.shape[2])
    out[:, 1:] = x
    return out


def transposed_write(m, x):
    x = m.a(x)
    x.transpose(1, 2)[:, 0].fill_(0.5)
    return x


WRITES = {
    "add_in_place": op("hidden n, hidden n -> hidden n", add_in_place, 3),
    "write_tail": op("hidden n, hidden n -> hidden n", write_tail, 3),
    "write_first": op("hidden n -> hidden n", write_first, 2),
    "write_last": op("hidden n -> hidden n", write_last, 2),
    "write_features": op("hidden n -> hidden n", write_features, 2),
    "scale_tail": op("hidden n -> hidden n", scale_tail, 2),
    "fill": op("hidden n, flags n -> hidden n", fill, 3),
    "view_and_change": rare("hidden n -> hidden n", view_and_change),
    "read_then_change": op("hidden n -> hidden n", read_then_change, 2),
    "change_then_read_view": op("hidden n -> hidden n-1", change_then_read_view, 2),
    "put_where": rare("hidden n, flags n -> hidden n", put_where),
    "accumulate": op("hidden n -> hidden n", accumulate, 2),
    "new_zeros": op("hidden n -> hidden n+1", new_zeros, 2),
    "transposed_write": op("hidden n -> hidden n", transposed_write, 2),
}
