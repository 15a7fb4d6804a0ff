from dataclasses import replace
from typing import Any

import pytest
import torch

from sp.models.llama import Llama, LlamaConfig, Rotary, rotate

SMALL = LlamaConfig(vocab_size=50, layers=2, heads=4, kv_heads=2, width=32)


def llama(**changes: Any) -> Llama:
    torch.manual_seed(0)
    return Llama(replace(SMALL, **changes)).double()


def test_loss_is_the_mean_over_labelled_next_tokens() -> None:
    model = llama()
    ids, labels = torch.randint(50, (2, 2, 10))
    labels[0, 3:] = -100
    logits, loss = model(ids, labels)
    terms = [
        -logits[row, i].log_softmax(-1)[labels[row, i + 1]]
        for row in range(2)
        for i in range(9)
        if labels[row, i + 1] != -100
    ]
    torch.testing.assert_close(loss, torch.stack(terms).mean())


def test_loss_of_a_16_bit_model_is_float32() -> None:
    ids, labels = torch.randint(50, (2, 2, 10))
    output = llama().bfloat16()(ids, labels)
    assert output.logits.dtype == torch.bfloat16
    assert output.loss.dtype == torch.float32


def test_causal() -> None:
    model, ids = llama(), torch.randint(50, (1, 10))
    changed = ids.clone()
    changed[0, 6] = (ids[0, 6] + 1) % 50
    before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[:, :6], after[:, :6])
    assert (before[:, 6:] != after[:, 6:]).any(-1).all()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_both_ways_of_grouping_heads_agree(kv_heads: int) -> None:
    ids, labels = torch.randint(50, (2, 2, 10))
    grouped, repeated = llama(kv_heads=kv_heads), llama(kv_heads=kv_heads, gqa="repeat_kv")
    torch.testing.assert_close(grouped(ids, labels), repeated(ids, labels))
    for model in (grouped, repeated):
        model(ids, labels).loss.backward()
    for ours, theirs in zip(grouped.parameters(), repeated.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_rotation_sees_only_distances() -> None:
    q_K, k_K = torch.randn(2, SMALL.head_width, dtype=torch.float64)
    cos_SK, sin_SK = Rotary(SMALL).double()(12)
    q_SK, k_SK = rotate(q_K.expand(12, -1), cos_SK, sin_SK), rotate(k_K.expand(12, -1), cos_SK, sin_SK)
    scores = q_SK @ k_SK.T
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1])  # constant along diagonals
    assert scores[0, 0] != scores[0, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_frequencies_survive_casts(dtype: torch.dtype) -> None:
    rotary = Rotary(SMALL).bfloat16().to(dtype)
    expected = torch.tensor([10_000.0 ** (-2 * r / 8) for r in range(4)], dtype=torch.float64)
    exact = torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(rotary.inv_freq_R, expected.to(exact), rtol=4 * torch.finfo(exact).eps, atol=0)


def test_frequencies_come_back_from_the_meta_device() -> None:
    with torch.device("meta"):
        model = Llama(SMALL)
    model.to_empty(device="cpu").init_weights()
    assert torch.equal(model.rotary.inv_freq_R, Llama(SMALL).rotary.inv_freq_R)
    assert "rotary.inv_freq_R" not in model.state_dict()
    assert model(torch.randint(50, (1, 5))).logits.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, r"width \(32\) must be a multiple of 2 \* heads \(10\)"),
        ({"heads": 32, "kv_heads": 1}, r"width \(32\) must be a multiple of 2 \* heads \(64\)"),
        ({"kv_heads": 3}, r"heads \(4\) must be a multiple of kv_heads \(3\)"),
        ({"kv_heads": 0}, "kv_heads must be at least 1, got 0"),
        ({"mlp_ratio": 0.01}, "leaves no MLP"),
        ({"gqa": "flash"}, "gqa must be 'enable_gqa' or 'repeat_kv', got 'flash'"),
    ],
)
def test_bad_config(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llama(**changes)
