"""Planted: attention over something else than all tokens, or with a mask that is not what it seems."""

import torch
import torch.nn.functional as F

from tests.planted.planted import LONGEST, D, Planted, heads

attend = F.scaled_dot_product_attention


def over_chunks(m, x, ids, labels):
    b, s, d = x.shape
    parts = [layer(x).view(b, s // 4, 4, d) for layer in (m.q, m.k, m.v)]  # here
    return attend(*parts, is_causal=True).reshape(b, s, d)  # here


def over_windows(m, x, ids, labels):
    b, s, d = x.shape
    q, k, v = (layer(x).reshape(b * s // 4, 1, 4, d) for layer in (m.q, m.k, m.v))  # here
    return attend(q, k, v).reshape(b, s, d)  # here


def over_the_batch(m, x, ids, labels):
    q, k, v = (layer(x).transpose(0, 1).unsqueeze(1) for layer in (m.q, m.k, m.v))  # here
    return attend(q, k, v)  # here


def over_the_heads(m, x, ids, labels):
    q, k, v = (layer(x).unflatten(-1, (2, -1)) for layer in (m.q, m.k, m.v))
    return attend(q, k, v)  # here


def of_a_flipped_query(m, x, ids, labels):
    return attend(heads(m.q(x.flip(1))), heads(m.k(x)), heads(m.v(x)), is_causal=True)  # here


def of_shifted_keys(m, x, ids, labels):
    k = F.pad(m.k(x), (0, 0, 1, 0))[:, :-1]  # here
    return attend(heads(m.q(x)), heads(k), heads(m.v(x)), is_causal=True)  # here


def of_keys_and_values_that_differ(m, x, ids, labels):
    return attend(heads(m.q(x)), heads(m.k(x))[:, :, 1:], heads(m.v(x))[:, :, :-1])  # here


def causal_with_a_wrong_offset(m, x, ids, labels):
    i = torch.arange(x.shape[1])
    mask = i[None, :] <= i[:, None] + 2
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=mask)  # here


def anticausal(m, x, ids, labels):
    i = torch.arange(x.shape[1])
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=i[None, :] >= i[:, None])  # here


def strictly_causal(m, x, ids, labels):
    """The first token sees nobody: its row is NaN, on one device too."""
    i = torch.arange(x.shape[1])
    out = attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=i[None, :] < i[:, None])  # here
    return out[:, :, 1:]  # here


def dilated(m, x, ids, labels):
    i = torch.arange(x.shape[1])
    mask = (i[:, None] - i[None, :]) % 2 == 0
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=mask)  # here


def windowed(m, x, ids, labels):
    i = torch.arange(x.shape[1])
    near = (i[:, None] - i[None, :] < 3) & (i[:, None] >= i[None, :])
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=near)  # here


def causal_by_blocks(m, x, ids, labels):
    i = torch.arange(x.shape[1]) // 4
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=i[None, :] <= i[:, None])  # here


def with_a_prefix(m, x, ids, labels):
    i = torch.arange(x.shape[1])
    mask = (i[None, :] <= i[:, None]) | (i[None, :] < 4)
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=mask)  # here


def with_sinks_and_window(m, x, ids, labels):
    i = torch.arange(x.shape[1])
    near = (i[None, :] <= i[:, None]) & ((i[:, None] - i[None, :] < 4) | (i[None, :] < 2))
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=near)  # here


def with_a_random_mask(m, x, ids, labels):
    n = x.shape[1]
    mask = torch.rand(n, n) > 0.3  # here
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=mask)  # here


def with_a_mask_of_contents(m, x, ids, labels):
    mask = (x[..., :1] @ x[..., :1].transpose(1, 2) > 0).unsqueeze(1)  # here
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=mask)  # here


def with_a_mask_of_ids(m, x, ids, labels):
    mask = (ids[:, None, None, :] != 0).expand(-1, 1, x.shape[1], -1)  # here
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=mask)  # here


def with_documents(m, x, ids, labels):
    document = (ids == 0).cumsum(1)
    mask = document[:, None, :, None] == document[:, None, None, :]  # here
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=mask)  # here


def with_a_learned_bias(m, x, ids, labels):
    n = x.shape[1]
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=m.w[:n, :n])  # here


def with_a_linear_bias(m, x, ids, labels):
    i = torch.arange(x.shape[1], dtype=x.dtype)
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=-(i[:, None] - i[None, :]).abs())  # here


def with_a_buffer_as_mask(m, x, ids, labels):
    n = x.shape[1]
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), attn_mask=m.mask[:n, :n])  # here


def with_dropout(m, x, ids, labels):
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), dropout_p=0.3, is_causal=True)  # here


def of_half_the_keys(m, x, ids, labels):
    k, v = m.k(x)[:, ::2], m.v(x)[:, ::2]  # here
    return attend(heads(m.q(x)), heads(k), heads(v))  # here


def to_the_first_keys(m, x, ids, labels):
    k, v = m.k(x)[:, :5], m.v(x)[:, :5]
    return attend(heads(m.q(x)), heads(k), heads(v))  # here


def to_learned_keys(m, x, ids, labels):
    k, v = (heads(m.p.unsqueeze(0).expand(x.shape[0], -1, -1)) for _ in range(2))
    return attend(heads(m.q(x)), k, v)  # here


def to_other_tokens(m, x, ids, labels):
    other = m.e(labels.clamp(min=0))
    return attend(heads(m.q(x)), heads(m.k(other)), heads(m.v(other)))  # here


def of_one_query(m, x, ids, labels):
    q = m.p[:1].unsqueeze(0).expand(x.shape[0], -1, -1)
    return attend(heads(q), heads(m.k(x)), heads(m.v(x)))  # here


def with_memory_before(m, x, ids, labels):
    memory = m.p[:3].unsqueeze(0).expand(x.shape[0], -1, -1)
    k, v = torch.cat([memory, m.k(x)], 1), torch.cat([memory, m.v(x)], 1)  # here
    return attend(heads(m.q(x)), heads(k), heads(v))  # here


def with_a_scale_of_contents(m, x, ids, labels):
    q = heads(m.q(x)) * x.mean()  # here
    return attend(q, heads(m.k(x)), heads(m.v(x)), is_causal=True)  # here


def with_a_scale_of_the_length(m, x, ids, labels):
    return attend(heads(m.q(x)), heads(m.k(x)), heads(m.v(x)), is_causal=True, scale=1 / x.shape[1])  # here


def grouped_and_repeated(m, x, ids, labels):
    k, v = (heads(layer(x)).repeat_interleave(2, 1) for layer in (m.k, m.v))  # here
    q = heads(m.q(x)).repeat(1, 2, 1, 1)  # here
    return attend(q, k, v, is_causal=True)  # here


def multihead_module(m, x, ids, labels):
    return m.part(x, x, x, need_weights=False)[0]  # here


def multihead_module_with_weights(m, x, ids, labels):
    return m.part(x, x, x, need_weights=True)[1]  # here


def encoder_layer(m, x, ids, labels):
    return m.part(x)  # here


def causal_square():
    return {"mask": torch.ones(LONGEST, LONGEST, dtype=torch.bool).tril()}


def multihead():
    return {"part": torch.nn.MultiheadAttention(D, 2, batch_first=True)}


SDPA = r"aten\.scaled_dot_product_attention"
SQUARE = rf"{SDPA}|aten\.(matmul|slice|rand|eq|sub|le|ne|ge|lt|expand)"
DIVIDES = rf"{SDPA}|aten\.(view|reshape)|takes only some lengths|finds no range"

ATTENTIONS = (
    Planted(over_chunks, DIVIDES, placed=False),
    Planted(over_windows, DIVIDES, placed=False, slow=True),
    *(Planted(way, SDPA) for way in (over_the_batch, over_the_heads, of_keys_and_values_that_differ)),
    Planted(of_a_flipped_query, r"aten\.flip"),
    Planted(of_shifted_keys, r"aten\.pad"),
    *(Planted(way, SQUARE) for way in (causal_with_a_wrong_offset, anticausal, strictly_causal, dilated, windowed)),
    *(Planted(way, SQUARE) for way in (causal_by_blocks, with_a_prefix, with_sinks_and_window, with_a_random_mask)),
    *(Planted(way, SQUARE) for way in (with_a_mask_of_contents, with_a_mask_of_ids, with_documents)),
    *(Planted(way, SQUARE) for way in (with_a_learned_bias, with_a_linear_bias)),
    Planted(with_a_buffer_as_mask, SQUARE, causal_square),
    Planted(with_dropout, SDPA),
    Planted(of_half_the_keys, rf"aten\.slice|{SDPA}"),
    *(Planted(way, SDPA) for way in (to_the_first_keys, to_learned_keys, to_other_tokens, of_one_query)),
    Planted(with_memory_before, rf"aten\.cat|{SDPA}"),
    Planted(with_a_scale_of_contents, r"aten\.mean"),
    Planted(with_a_scale_of_the_length, rf"{SDPA}|finds no range", placed=False),
    Planted(grouped_and_repeated, r"aten\.repeat"),
    Planted(multihead_module, r"aten\.", multihead),
    Planted(multihead_module_with_weights, r"aten\.", multihead),
    Planted(
        encoder_layer,
        r"aten\.",
        lambda: {"part": torch.nn.TransformerEncoderLayer(D, 2, 16, 0.0, batch_first=True)},
        train=False,
    ),
)
