"""Planted: tokens that change place, number or meaning: views, slices, copies, and positions counted anew."""

import math

import torch
import torch.nn.functional as F

from tests.planted.planted import LONGEST, D, Planted


def view_that_mixes(m, x, ids, labels):
    b, s, d = x.shape
    return x.view(s, b, d) * m.p[:s, None]  # here


def transpose_then_view(m, x, ids, labels):
    b, s, d = x.shape
    return m.q(x.transpose(1, 2).reshape(b, s, d))  # here


def merged_with_features(m, x, ids, labels):
    return x.flatten(1).tanh()  # here


def merged_and_split_again(m, x, ids, labels):
    return m.q(x.flatten(0, 1)).view(x.shape)  # here


def batch_behind_the_sequence(m, x, ids, labels):
    return m.q(x.transpose(0, 1).flatten(0, 1)).view(x.shape[1], x.shape[0], D)  # here


def chunks(m, x, ids, labels):
    b, s, d = x.shape
    return m.q(x.view(b, s // 4, 4, d)).amax(2)  # here


def pairs_of_tokens(m, x, ids, labels):
    b, s, d = x.shape
    return m.merge(x.reshape(b, s // 2, 2 * d))  # here


def repeat_interleave(m, x, ids, labels):
    return x.repeat_interleave(2, 1)  # here


def repeat(m, x, ids, labels):
    return x.repeat(1, 2, 1)  # here


def cat_with_itself(m, x, ids, labels):
    return torch.cat([x, m.q(x)], 1)  # here


def stack_then_flatten(m, x, ids, labels):
    return torch.stack([x, m.q(x)], 2).flatten(1, 2)  # here


def stack_before_the_sequence(m, x, ids, labels):
    return torch.stack([x, m.q(x)], 1).flatten(1, 2)  # here


def every_second(m, x, ids, labels):
    return x[:, ::2]  # here


def even_and_odd(m, x, ids, labels):
    return x[:, 0::2].sum(1) - x[:, 1::2].sum(1)  # here


def last_token(m, x, ids, labels):
    return m.q(x[:, -1])  # here


def first_token(m, x, ids, labels):
    return m.q(x[:, 0])  # here


def third_token(m, x, ids, labels):
    return x * m.q(x[:, 3:4])  # here


def last_token_of_each_row(m, x, ids, labels):
    last = (labels != -100).sum(1) - 1
    return m.q(x[torch.arange(x.shape[0]), last])  # here


def halves(m, x, ids, labels):
    left, right = x[:, :6], x[:, 6:]
    return torch.cat([right, left], 1)  # here


def chunk_along_the_sequence(m, x, ids, labels):
    left, right = x.chunk(2, 1)  # here
    return left * right  # here


def split_of_a_fixed_prefix(m, x, ids, labels):
    prefix = x[:, :4]
    return x + prefix.mean(1, keepdim=True)  # here


def neighbours(m, x, ids, labels):
    return x[:, 1:] * x[:, :-1]  # here


def difference_to_previous(m, x, ids, labels):
    return x - F.pad(x, (0, 0, 1, 0))[:, :-1]  # here


def padded(m, x, ids, labels):
    return F.pad(m.q(x), (0, 0, 0, 3))  # here


def prefix_token(m, x, ids, labels):
    cls = m.p[:1].expand(x.shape[0], 1, D)
    return m.q(torch.cat([cls, x], 1))  # here


def expand_of_the_sequence(m, x, ids, labels):
    return m.p[:1].expand(x.shape[1], D) + x  # here


def expand_to_a_square(m, x, ids, labels):
    n = x.shape[1]
    return x.unsqueeze(1).expand(-1, n, -1, -1).mean(2)  # here


def strided_memory(m, x, ids, labels):
    b, s, d = x.shape
    return x.contiguous().as_strided((b, s - 1, 2 * d), (s * d, d, 1))  # here


def diagonal(m, x, ids, labels):
    return x.diagonal(dim1=1, dim2=2)  # here


def narrow_in_the_middle(m, x, ids, labels):
    return x.narrow(1, 2, 5)  # here


def positions_restarted(m, x, ids, labels):
    return x + m.p[torch.arange(x.shape[1]) % 4]  # here


def positions_backwards(m, x, ids, labels):
    return x + m.p[x.shape[1] - 1 - torch.arange(x.shape[1])]  # here


def positions_by_table(m, x, ids, labels):
    return x + m.p[: x.shape[1]]  # here


def positions_by_table_end(m, x, ids, labels):
    return x + m.p[LONGEST - x.shape[1] :]  # here


def positions_flipped(m, x, ids, labels):
    return x + m.p[: x.shape[1]].flip(0)  # here


def positions_by_cumsum(m, x, ids, labels):
    where = (ids > 0).cumsum(1) - 1
    return x + m.p[where.clamp(min=0)]  # here


def positions_by_linspace(m, x, ids, labels):
    return x * torch.linspace(0, 1, x.shape[1], dtype=x.dtype)[:, None]  # here


def rotary(m, x, ids, labels):
    n, half = x.shape[1], D // 2
    angle = torch.arange(n, dtype=x.dtype)[:, None] * m.frequencies
    left, right = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)


def rotary_from_a_cache(m, x, ids, labels):
    angle, half = m.cache[: x.shape[1]], D // 2
    return torch.cat([x[..., :half] * angle.cos(), x[..., half:] * angle.sin()], -1)


def length_in_the_value(m, x, ids, labels):
    return x / x.shape[1]  # here


def length_in_a_logarithm(m, x, ids, labels):
    return x * math.log(x.shape[1])  # here


def length_as_a_tensor(m, x, ids, labels):
    return x * torch.tensor(x.shape[1])  # here


def length_of_the_batch_and_sequence(m, x, ids, labels):
    return x.sum() / x.numel()  # here


def length_decides(m, x, ids, labels):
    return m.q(x) if x.shape[1] > 10 else m.k(x)  # here


def length_is_even(m, x, ids, labels):
    return m.q(x) if x.shape[1] % 2 == 0 else m.k(x)  # here


def mask_at_a_position(m, x, ids, labels):
    position = torch.arange(x.shape[1])[:, None]
    return torch.where(position == x.shape[1] - 1, m.q(x), x)


def first_set_to_zero(m, x, ids, labels):
    x = x.clone()
    x[:, 0] = 0  # here
    return x


def third_increased(m, x, ids, labels):
    x = m.q(x)
    x[:, 3] += 1  # here
    return x


def in_place_everywhere(m, x, ids, labels):
    return m.q(x).mul_(2).relu_()  # here


def index_put(m, x, ids, labels):
    return x.index_put((torch.tensor([0]), torch.tensor([1])), x[0, 2])  # here


def index_fill(m, x, ids, labels):
    return x.index_fill(1, torch.tensor([0, 2]), 0.0)  # here


def select_scatter(m, x, ids, labels):
    return torch.select_scatter(x, x[:, 0], 1, 3)  # here


def slice_scatter(m, x, ids, labels):
    return torch.slice_scatter(x, m.q(x)[:, :2], 1, 0, 2)  # here


def ids_shifted_left(m, x, ids, labels):
    return x + m.e(F.pad(ids[:, 1:], (0, 1)))


def ids_flipped(m, x, ids, labels):
    return x + m.e(ids.flip(1))


def ids_sorted(m, x, ids, labels):
    return x + m.e(ids.sort(1).values)


def ids_of_half_the_length(m, x, ids, labels):
    return x + m.e(ids[:, ::2]).mean(1, keepdim=True)  # here


def frequencies():
    return {"frequencies": torch.rand(D // 2)}


SHAPES = (
    Planted(view_that_mixes, r"aten\.view"),
    Planted(transpose_then_view, r"aten\.reshape"),
    Planted(merged_with_features, r"aten\.flatten"),
    Planted(merged_and_split_again, r"aten\."),
    Planted(batch_behind_the_sequence, r"aten\."),
    Planted(chunks, r"aten\.view|takes only some lengths", placed=False),
    Planted(
        pairs_of_tokens,
        r"aten\.reshape|takes only some lengths",
        lambda: {"merge": torch.nn.Linear(2 * D, D)},
        placed=False,
    ),
    Planted(repeat_interleave, r"aten\.repeat_interleave"),
    Planted(repeat, r"aten\.repeat"),
    Planted(cat_with_itself, r"aten\.cat"),
    Planted(stack_then_flatten, r"aten\.flatten"),
    Planted(stack_before_the_sequence, r"aten\.flatten"),
    Planted(every_second, r"aten\.slice"),
    Planted(even_and_odd, r"aten\.slice"),
    Planted(last_token, r"aten\.select"),
    Planted(first_token, r"aten\.select"),
    Planted(third_token, r"aten\.(slice|linear|mul)"),
    Planted(last_token_of_each_row, r"aten\.index"),
    Planted(halves, r"aten\.cat"),
    Planted(chunk_along_the_sequence, r"aten\.(chunk|split)|takes only|fixes its", placed=False),
    Planted(split_of_a_fixed_prefix, r"aten\.(slice|mean|add)"),
    Planted(neighbours, r"aten\.mul"),
    Planted(difference_to_previous, r"aten\.pad"),
    Planted(padded, r"aten\.pad"),
    Planted(prefix_token, r"aten\.cat"),
    Planted(expand_of_the_sequence, r"aten\.(expand|add)"),
    Planted(expand_to_a_square, r"aten\.expand"),
    Planted(strided_memory, r"aten\.as_strided"),
    Planted(diagonal, r"aten\.diagonal|fixes", placed=False),
    Planted(narrow_in_the_middle, r"aten\.(narrow|slice)"),
    Planted(positions_restarted, r"aten\.index"),
    Planted(positions_backwards, r"aten\.index"),
    Planted(positions_by_table, r"aten\."),
    Planted(positions_by_table_end, r"aten\."),
    Planted(positions_flipped, r"aten\.flip"),
    Planted(positions_by_cumsum, r"aten\.index"),
    Planted(positions_by_linspace, r"aten\.(linspace|mul)|fixes its sequence length"),
    Planted(rotary, "exact", frequencies),
    Planted(rotary_from_a_cache, "exact", lambda: {"cache": torch.rand(LONGEST, D // 2)}),
    Planted(length_in_the_value, "exact"),
    Planted(length_in_a_logarithm, "fixes its sequence length|aten.", placed=False),
    Planted(length_as_a_tensor, "fixes its sequence length|aten."),
    Planted(length_of_the_batch_and_sequence, r"aten\.sum"),
    Planted(length_decides, "fixes|finds no range|InputError", placed=False),
    Planted(length_is_even, "takes only some lengths|finds no range", placed=False),
    Planted(mask_at_a_position, "exact"),
    Planted(first_set_to_zero, r"aten\.(fill_|copy_|index_put_|select)"),
    Planted(third_increased, r"aten\.(add_|copy_|select)"),
    Planted(in_place_everywhere, r"aten\.(relu_|mul_)"),
    Planted(index_put, r"aten\.(index_put|select)"),
    Planted(index_fill, r"aten\.index_fill"),
    Planted(select_scatter, r"aten\.select"),
    Planted(slice_scatter, r"aten\.slice_scatter"),
    Planted(ids_shifted_left, "exact"),
    Planted(ids_flipped, "exact"),
    Planted(ids_sorted, "exact"),
    Planted(ids_of_half_the_length, r"aten\.(mean|slice|embedding)"),
)
