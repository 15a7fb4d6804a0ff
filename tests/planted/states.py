"""Planted: Python that looks at contents, remembers calls or draws numbers, and gradients that are not autograd's."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.planted.planted import D, Planted


def branch_on_the_sum(m, x, ids, labels):
    return m.q(x) if x.sum() > 0 else m.k(x)  # here


def branch_on_the_ids(m, x, ids, labels):
    return m.q(x) if bool((ids == 3).any()) else x  # here


def item(m, x, ids, labels):
    return x * x.abs().max().item()  # here


def item_of_ids(m, x, ids, labels):
    return x[:, : int(ids.max().item())]  # here


def python_list(m, x, ids, labels):
    return x * sum(ids[0].tolist())  # here


def counter(m, x, ids, labels):
    m.calls += 1
    return x * m.calls  # here


def counter_as_tensor(m, x, ids, labels):
    m.count = m.count + 1  # here
    return x * m.count  # here


def counter_as_buffer(m, x, ids, labels):
    m.count.add_(1)  # here
    return x * m.count  # here


def running_statistics(m, x, ids, labels):
    with torch.no_grad():
        m.running.mul_(0.9).add_(0.1 * x.mean((0, 1)))  # here
    return x - m.running


def statistics_replaced(m, x, ids, labels):
    m.running = 0.9 * m.running + 0.1 * x.detach().mean((0, 1))  # here
    return x - m.running  # here


def key_value_cache(m, x, ids, labels):
    old = m.kept
    m.kept = x.detach()  # here
    return x if old is None else x + old.mean()  # here


def list_of_calls(m, x, ids, labels):
    m.seen.append(1)
    return x * len(m.seen)  # here


def noted(m, x, ids, labels):
    m.seen.append(tuple(x.shape))
    return m.q(x)  # here


def random_of_python(m, x, ids, labels):
    return x * random.random()  # here


def noise(m, x, ids, labels):
    return x + torch.randn_like(x)  # here


def noise_from_a_generator(m, x, ids, labels):
    generator = torch.Generator().manual_seed(0)
    return x + torch.randn(x.shape, generator=generator, dtype=x.dtype)  # here


def noise_after_a_seed(m, x, ids, labels):
    torch.manual_seed(0)
    return x + torch.rand(x.shape[1], D, dtype=x.dtype)  # here


def bernoulli(m, x, ids, labels):
    return x * torch.bernoulli(torch.full_like(x, 0.5))  # here


def dropout(m, x, ids, labels):
    return F.dropout(x, 0.5, True)  # here


def dropout_of_tokens(m, x, ids, labels):
    return F.dropout1d(x, 0.5, True)  # here


def dropout_in_eval(m, x, ids, labels):
    return F.dropout(m.q(x), 0.5, m.training)  # here


def gumbel(m, x, ids, labels):
    return F.gumbel_softmax(x, dim=-1)  # here


def drop_path(m, x, ids, labels):
    keep = torch.rand(x.shape[0], 1, 1) > 0.5  # here
    return x + m.q(x) * keep  # here


class Reverse(torch.autograd.Function):
    """The identity whose gradient changes sign."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return -g


def gradient_reversed(m, x, ids, labels):
    return m.q(Reverse.apply(x))  # here


class Round(torch.autograd.Function):
    """Straight through: rounded forward, the identity backward."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


def straight_through_function(m, x, ids, labels):
    return m.q(Round.apply(x))  # here


def straight_through_detach(m, x, ids, labels):
    return m.q(x + (x.round() - x).detach())  # here


def gradient_hook(m, x, ids, labels):
    x = m.q(x)
    x.register_hook(lambda g: 2 * g)  # here
    return m.k(x)  # here


def gradient_clipped_by_hook(m, x, ids, labels):
    x = m.q(x)
    if x.requires_grad:
        x.register_hook(lambda g: g / (1e-6 + g.norm()))  # here
    return m.k(x)  # here


def forward_hook(m, x, ids, labels):
    return m.part(x)  # here


def backward_hook(m, x, ids, labels):
    return m.part(x)  # here


def gradient_inside(m, x, ids, labels):
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(y.square().sum(), y)  # here
    return x + g  # here


def functional_gradient(m, x, ids, labels):
    return torch.func.grad(lambda y: y.pow(3).mean())(x)  # here


def no_grad_region(m, x, ids, labels):
    with torch.no_grad():
        scale = m.q(x).sigmoid()  # here
    return x * scale


def detached_half(m, x, ids, labels):
    return x * m.q(x).detach() + m.k(x.detach())


def set_to_inference(m, x, ids, labels):
    with torch.inference_mode():
        y = m.q(x)  # here
    return x + y  # here


def data_changed(m, x, ids, labels):
    y = m.q(x)
    y.data.mul_(2)  # here
    return y  # here


def weight_changed(m, x, ids, labels):
    with torch.no_grad():
        m.q.weight.mul_(0.5)  # here
    return m.q(x)  # here


def weight_replaced(m, x, ids, labels):
    return F.linear(x, m.q.weight / m.q.weight.norm())


def spectral_norm(m, x, ids, labels):
    return m.part(x)  # here


def weight_norm(m, x, ids, labels):
    return m.part(x)  # here


def embedding_with_a_largest_norm(m, x, ids, labels):
    return x + F.embedding(ids, m.p, max_norm=1.0)  # here


def embedding_by_frequency(m, x, ids, labels):
    return x + F.embedding(ids, m.p, scale_grad_by_freq=True)  # here


def embedding_with_padding(m, x, ids, labels):
    return x + F.embedding(ids, m.p, padding_idx=3)  # here


def embedding_of_contents(m, x, ids, labels):
    return x + m.p[(x[..., 0].abs() * 3).long().clamp(max=7)]  # here


def checkpointed(m, x, ids, labels):
    return checkpoint(m.q, x, use_reentrant=False)  # here


def cond(m, x, ids, labels):
    return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))  # here


def while_loop(m, x, ids, labels):
    def more(n, y):
        return n < 3

    def step(n, y):
        return n + 1, y * 2

    return torch._higher_order_ops.while_loop(more, step, (torch.tensor(0), x))[1]  # here


def vmapped(m, x, ids, labels):
    return torch.vmap(lambda row: row - row.mean(0))(x)  # here


def complex_rotation(m, x, ids, labels):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())  # here
    turn = torch.polar(torch.ones(x.shape[1]), torch.arange(x.shape[1], dtype=torch.float32)).to(pairs.dtype)  # here
    return torch.view_as_real(pairs * turn[:, None]).flatten(2)  # here


def overflowing_counter(m, x, ids, labels):
    count = torch.full((x.shape[1],), 100, dtype=torch.int8).cumsum(0, dtype=torch.int8)
    return x * count[:, None]


def hash_of_the_prefix(m, x, ids, labels):
    return x * (ids.cumsum(1) % 7).unsqueeze(-1)


def half_precision(m, x, ids, labels):
    return (x.half() * 3).to(x.dtype)


def assertion(m, x, ids, labels):
    assert bool(x.isfinite().all())  # here
    return m.q(x)


def flag_of_gradients(m, x, ids, labels):
    return m.q(x) if torch.is_grad_enabled() else m.k(x)


def numpy_inside(m, x, ids, labels):
    return x + torch.from_numpy(x.detach().numpy().cumsum(1))  # here


def double_the_output():
    part = nn.Linear(D, D)
    part.register_forward_hook(lambda module, args, out: out - out.mean(1, keepdim=True))
    return {"part": part}


def double_the_gradient():
    part = nn.Linear(D, D)
    part.register_full_backward_hook(lambda module, inner, outer: tuple(2 * g for g in inner))
    return {"part": part}


def buffer(name):
    def parts():
        return {name: nn.Buffer(torch.zeros(()) if name == "count" else torch.zeros(D))}

    return parts


PYTHON = "cannot trace"
RANDOM = r"aten\.(rand|randn|bernoulli|dropout|exponential)"

STATES = (
    *(Planted(way, PYTHON) for way in (branch_on_the_sum, branch_on_the_ids, assertion)),
    *(Planted(way, rf"aten\.|{PYTHON}|fixes its") for way in (item, item_of_ids, python_list, numpy_inside)),
    Planted(counter, r"Net\.calls", placed=False),
    Planted(counter_as_tensor, r"Net\.count", lambda: {"count": torch.zeros(())}, placed=False),
    Planted(counter_as_buffer, r"aten\.add_", buffer("count")),
    Planted(running_statistics, r"aten\.(mul_|add_)|wrap_with_set_grad", buffer("running")),
    Planted(statistics_replaced, r"Net\.running", buffer("running"), placed=False),
    Planted(key_value_cache, r"Net\.kept", lambda: {"kept": None}, placed=False),
    Planted(list_of_calls, r"Net\.seen", lambda: {"seen": []}, placed=False),
    Planted(noted, r"Net\.seen", lambda: {"seen": []}, placed=False),
    Planted(random_of_python, "random", placed=False),
    *(Planted(way, RANDOM) for way in (noise, noise_after_a_seed, bernoulli, dropout)),
    *(Planted(way, r"aten\.\w*(dropout|rand|exponential)") for way in (dropout_of_tokens, gumbel, drop_path)),
    Planted(noise_from_a_generator, PYTHON),
    Planted(dropout_in_eval, "exact", train=False),
    *(Planted(way, r"(Reverse|Round)\.apply") for way in (gradient_reversed, straight_through_function)),
    Planted(straight_through_detach, "exact"),
    *(Planted(way, r"Tensor\.register_hook") for way in (gradient_hook, gradient_clipped_by_hook)),
    Planted(forward_hook, r"aten\.mean", double_the_output),
    Planted(backward_hook, "'part' of the model has a backward hook", double_the_gradient, placed=False),
    Planted(gradient_inside, rf"aten\.|{PYTHON}"),
    Planted(functional_gradient, "lifted_tensor", placed=False),
    *(Planted(way, "wrap_with_set_grad_enabled") for way in (no_grad_region, detached_half, weight_replaced)),
    Planted(set_to_inference, r"torch\.inference_mode"),
    Planted(weight_changed, r"aten\.mul_|wrap_with_set_grad"),
    Planted(data_changed, PYTHON, placed=False),
    Planted(
        spectral_norm,
        r"aten\.",
        lambda: {"part": parametrizations.spectral_norm(nn.Linear(D, D))},
    ),
    Planted(weight_norm, r"aten\.", lambda: {"part": parametrizations.weight_norm(nn.Linear(D, D))}),
    Planted(embedding_with_a_largest_norm, r"aten\.embedding"),
    *(Planted(way, r"aten\.embedding") for way in (embedding_by_frequency, embedding_with_padding)),
    Planted(embedding_of_contents, r"aten\.index"),
    Planted(checkpointed, "checkpoint|wrap"),
    *(Planted(way, f"{way.__name__}|{PYTHON}") for way in (cond, while_loop)),
    Planted(vmapped, r"aten\.mean|_add_batch_dim"),
    Planted(complex_rotation, r"aten\.(view_as_complex|polar)"),
    *(Planted(way, "exact") for way in (overflowing_counter, hash_of_the_prefix, half_precision)),
    Planted(flag_of_gradients, "exact"),
)
