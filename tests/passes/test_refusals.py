"""All refusals of a model in one error: of every pass, with the way of the sequence, and like ones counted once."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sp.errors import UnsupportedModelError
from sp.passes import pipeline
from tests.passes.programs import IDS_BS, Small, program_of


def refused(model: Any, *inputs: Tensor) -> UnsupportedModelError:
    with pytest.raises(UnsupportedModelError) as caught:
        program_of(model, *(inputs or (IDS_BS,)), passes=pipeline())
    return caught.value


def attended(x: Tensor, **options: Any) -> Tensor:
    q = x.unflatten(-1, (2, 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, **options).transpose(1, 2).flatten(2)


def test_of_every_pass_at_once() -> None:
    """In place, attention, decompose, place: each finds its own, and what follows is looked at all the same."""

    def forward(m: Small, ids: Tensor) -> Any:
        ids.mul_(1)
        h = m.l(m.e(ids)).cumsum(1)
        h = attended(h, dropout_p=0.5)
        return h.flip(1), F.conv1d(h.mT, m.p[:16].reshape(4, 4, 4), stride=2)

    nodes = [refusal.node.split(":")[0] for refusal in refused(forward).refusals]
    assert nodes == ["mul_", "cumsum", "scaled_dot_product_attention", "flip", "conv1d"]


class Layers(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.e = nn.Embedding(11, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.e(ids)
        for layer in self.layers:
            x = layer(x).cumsum(1)
        return x


def test_like_ones_are_counted_once() -> None:
    error = refused(Layers(5))
    (refusal,) = error.refusals
    assert refusal.more == 4
    assert "5 nodes cannot be spread over ranks exactly" in str(error)
    assert "(and 4 more from this line)" in str(error)


def test_other_reasons_on_one_line_are_told_apart() -> None:
    def forward(m: Small, ids: Tensor) -> Tensor:
        h = m.e(ids)
        summed = (h @ h.mT > 0).cumsum(-1) > 1
        for options in ({"dropout_p": 0.5}, {"attn_mask": summed[:, None]}, {"dropout_p": 0.5}):
            h = attended(h, **options)
        return h

    first, second = refused(forward).refusals
    assert (first.more, second.more) == (1, 0)
    assert "it drops out scores" in first.why
    assert "its mask is not known tile by tile" in second.why


def test_the_way_of_the_sequence() -> None:
    def forward(m: Small, ids: Tensor) -> Tensor:
        h = m.e(ids)
        for _ in range(9):
            h = m.l(h).relu()
        return h.cumsum(1)

    text = str(refused(forward))
    assert "by way of embedding → linear → relu → … → relu_7 → linear_8 → relu_8 → cumsum" in text
    assert "(relu_8 is sharded(dim 1))" in text


def test_sizes_have_names() -> None:
    text = str(refused(lambda m, ids: m.e(ids).reshape(ids.shape[1], ids.shape[0], 4)))
    assert "it reshapes (B, S, 4) to (S, B, 4)" in text


def test_a_refused_attention_does_not_blame_its_mask() -> None:
    """That the mask is sequence × sequence would be no matter, had the attention taken it."""

    def forward(m: Small, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        strange = (places[:, None] >= places).cumsum(-1) > 2
        return attended(m.e(ids), attn_mask=strange)

    (refusal,) = refused(forward).refusals
    assert refusal.node.startswith("scaled_dot_product_attention")


def test_a_model_of_torchs_own_is_blamed_in_torch() -> None:
    """There is no line of a user's to name."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
    (refusal,) = refused(layer, torch.rand(2, 9, 4)).refusals
    assert refusal.node.startswith("scaled_dot_product_attention")
    assert "/torch/nn/" in refusal.source
