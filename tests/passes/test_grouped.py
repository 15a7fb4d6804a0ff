"""Keys and values that a model repeats for its query heads are found as they were before."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.testing.trial import run_whole
from tests.passes.programs import rewritten

sdpa = F.scaled_dot_product_attention


def expanded(x: Tensor, times: int) -> Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


GROUPED: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "all heads": (4, lambda x: sdpa(x, x, x)),
    "enable_gqa": (2, lambda x: sdpa(x, x[:, :2], x[:, 2:], enable_gqa=True)),
    "expand, reshape": (2, lambda x: sdpa(x, expanded(x[:, :2], 2), expanded(x[:, 2:], 2))),
    "expand, flatten": (2, lambda x: sdpa(x, *(x[:, :2, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for _ in "kv"))),
    "expand, clone, view": (
        2,
        lambda x: sdpa(x, *(x[:, :2, None].expand(-1, -1, 2, -1, -1).clone().view(x.shape) for _ in "kv")),
    ),
    "cast afterwards": (2, lambda x: sdpa(x.double(), *(expanded(x[:, :2], 2).double() for _ in "kv")).float()),
    "cast twice": (4, lambda x: sdpa(x, *(expanded(x[:, :2], 2).bfloat16().float() for _ in "kv"))),
    "one head": (1, lambda x: sdpa(x, expanded(x[:, :1], 4), expanded(x[:, :1], 4))),
    "repeat_interleave": (2, lambda x: sdpa(x, *(x[:, :2].repeat_interleave(2, 1) for _ in "kv"))),
    "repeat_interleave, negative dim": (2, lambda x: sdpa(x, *(x[:, :2].repeat_interleave(2, dim=-3) for _ in "kv"))),
    "one head, broadcast": (1, lambda x: sdpa(x, x[:, :1], x[:, 1:2])),
    "unequal": (4, lambda x: sdpa(x, expanded(x[:, :2], 2), expanded(x[:, :1], 4))),
    "only keys": (4, lambda x: sdpa(x, expanded(x[:, :2], 2), x)),
    "tiled": (4, lambda x: sdpa(x, *(x[:, None, :2].expand(-1, 2, -1, -1, -1).reshape(x.shape) for _ in "kv"))),
    "repeated in width": (
        4,
        lambda x: sdpa(*(x, *(x[..., :4].repeat_interleave(2, -1) for _ in "kv"))),
    ),
    "repeated unevenly": (
        4,
        lambda x: sdpa(x, *(x[:, :2].repeat_interleave(torch.tensor([1, 3]), 1, output_size=4) for _ in "kv")),
    ),
}


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_heads(name: str) -> None:
    """As few key heads as there are; the rewritten graph computes the same."""
    kv_heads, way = GROUPED[name]
    program = rewritten(way)
    (site,) = program.attentions
    assert (site.heads, site.kv_heads) == (4, kv_heads)
    x = torch.randn(2, 4, 9, 8)
    *_, (found,) = run_whole(program.graph_module, [x]).values()
    torch.testing.assert_close(found, way(x))


def test_every_kind_of_head_is_tried() -> None:
    assert {heads for heads, _ in GROUPED.values()} == {1, 2, 4}
