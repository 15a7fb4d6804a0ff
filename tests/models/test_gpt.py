from dataclasses import replace
from typing import Any

import pytest
import torch

from sp.models.gpt import GPT, GPTConfig

SMALL = GPTConfig(vocab_size=50, max_length=32, layers=2, heads=4, width=32)


def gpt(**changes: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(replace(SMALL, **changes)).double()


def test_loss_is_the_mean_over_labelled_next_tokens() -> None:
    model = gpt()
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


def test_causal() -> None:
    model, ids = gpt(), torch.randint(50, (1, 10))
    changed = ids.clone()
    changed[0, 6] = (ids[0, 6] + 1) % 50
    before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[:, :6], after[:, :6])
    assert (before[:, 6:] != after[:, 6:]).any(-1).all()


def test_tied_embedding_is_one_parameter() -> None:
    tied, untied = gpt(), gpt(tie_embeddings=False)
    assert tied.head.weight is tied.tokens.weight
    assert len(list(untied.parameters())) == len(list(tied.parameters())) + 1
    assert tied.state_dict().keys() == untied.state_dict().keys()


def test_positions_matter() -> None:
    logits = gpt()(torch.full((1, 4), 7)).logits
    assert not torch.allclose(logits[:, 0], logits[:, 3])


def test_dropout_only_in_training() -> None:
    model, ids = gpt(dropout=0.5), torch.randint(50, (1, 10))
    assert not torch.equal(model(ids).logits, model(ids).logits)
    model.eval()
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_residual_projections_start_smaller() -> None:
    weights = gpt(width=256).state_dict()
    assert weights["blocks.0.mlp.up.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert weights["blocks.0.mlp.out.weight"].std().item() == pytest.approx(0.01, rel=0.05)  # 0.02 / √(2 · 2)


def test_too_long_a_sequence() -> None:
    with pytest.raises(ValueError, match="33 tokens, but max_length is 32"):
        gpt()(torch.zeros(1, 33, dtype=torch.long))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, r"width \(32\) must be a multiple of heads \(5\)"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
    ],
)
def test_bad_config(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpt(**changes)
