"""Attention of models in 16 bits: no worse than rounding, whatever dtypes its scores and masks go through."""

from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sp.passes import pipeline
from sp.passes.bind import bind
from sp.runtime.world import seat_name
from sp.testing.ranks import run_ranks
from tests.passes.exact import results, single
from tests.passes.forms import Form, Written, future, scores
from tests.passes.programs import program_of

MIN = torch.finfo(torch.float32).min


def hidden(q: Tensor) -> Tensor:
    """Causal after three tokens of padding, which see nothing."""
    return future(q) | (torch.arange(q.shape[-2]) < 3)


def far(q: Tensor) -> Tensor:
    """Numbers that 16 bits would round to multiples of 4."""
    return torch.arange(q.shape[-2], dtype=torch.float32) * 0.37 + 1000


def causal(q: Tensor) -> Tensor:
    return q.new_zeros(future(q).shape).masked_fill(future(q), -torch.inf)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def weighed(s: Tensor, v: Tensor) -> Tensor:
    return s.softmax(-1).to(v.dtype) @ v


FORMS: Mapping[str, Form] = {
    "wide scores and bias": lambda m, q, k, v: weighed(scores(q, k).float() + far(q), v),
    "a wide bias": lambda m, q, k, v: weighed(scores(q, k) + far(q), v),
    "wide scores, filled": lambda m, q, k, v: weighed(scores(q, k).float().masked_fill(hidden(q), MIN), v),
    "wide scores, hidden": lambda m, q, k, v: weighed(scores(q, k).float() + hidden(q) * MIN, v),
    "filled": lambda m, q, k, v: weighed(scores(q, k).masked_fill(hidden(q), torch.finfo(q.dtype).min), v),
    "added in its dtype": lambda m, q, k, v: weighed(
        scores(q, k) + q.new_zeros(hidden(q).shape).masked_fill(hidden(q), torch.finfo(q.dtype).min), v
    ),
    "padding added in its dtype": lambda m, q, k, v: weighed(
        scores(q, k) * 4 + causal(q) + (torch.arange(q.shape[-2]) < 3) * torch.finfo(q.dtype).min, v
    ),
    "a mask made narrow": lambda m, q, k, v: attend(q, k, v, (hidden(q) * MIN).to(q.dtype)[None, None] + causal(q)),
    "a mask of its dtype": lambda m, q, k, v: attend(
        q, k, v, q.new_zeros(hidden(q).shape).masked_fill(hidden(q), torch.finfo(q.dtype).min)[None, None]
    ),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FORMS)
def test_as_good_as_the_model(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, ids = Written(FORMS[name]).to(dtype), torch.randint(0, 11, (2, 13))
    with sdpa_kernel(SDPBackend.MATH):
        right = single(model, [ids])  # pyright: ignore[reportArgumentType]
    program = program_of(model, ids, passes=pipeline(), strategy="striped")

    def rank(group: dist.ProcessGroup) -> tuple[list[Tensor], list[Tensor]]:
        return results(list(bind(program, seat_name(group.group_name))(ids)), model, [ids])  # pyright: ignore[reportArgumentType]

    for outputs, gradients in run_ranks(2, rank):
        for found, expected in zip((*outputs, *gradients), (*right[0], *right[1]), strict=True):
            worst = (found.double() - expected.double()).abs().max() / (expected.double().abs().max() + 1e-9)
            assert worst < 0.03, f"{worst:.1e} off"
