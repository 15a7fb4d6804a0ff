from dataclasses import replace
from typing import Any

import pytest
import torch

from sp.models.encoder import Encoder, EncoderConfig

SMALL = EncoderConfig(vocab_size=50, max_length=32, layers=2, heads=4, width=32)


def encoder(**changes: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder(replace(SMALL, **changes)).double()


def test_loss_is_the_mean_over_labelled_tokens() -> None:
    model = encoder()
    ids, labels = torch.randint(50, (2, 2, 10))
    labels[0, 3:] = -100
    hidden, loss = model(ids, labels)
    logits = model.head(hidden)
    terms = [
        -logits[row, i].log_softmax(-1)[labels[row, i]] for row in range(2) for i in range(10) if labels[row, i] != -100
    ]
    torch.testing.assert_close(loss, torch.stack(terms).mean())


def test_every_token_sees_every_other() -> None:
    model, ids = encoder(), torch.randint(50, (1, 10))
    before = model(ids).hidden
    for position in (0, 9):
        changed = ids.clone()
        changed[0, position] = (ids[0, position] + 1) % 50
        assert (before != model(changed).hidden).any(-1).all()


def test_positions_matter() -> None:
    hidden = encoder()(torch.full((1, 4), 7)).hidden
    assert not torch.allclose(hidden[:, 0], hidden[:, 3])


def test_head_shares_the_token_embedding() -> None:
    model = encoder()
    assert model.head.vocab.weight is model.tokens.weight


def test_too_long_a_sequence() -> None:
    with pytest.raises(ValueError, match="33 tokens, but max_length is 32"):
        encoder()(torch.zeros(1, 33, dtype=torch.long))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, r"width \(32\) must be a multiple of heads \(5\)"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
    ],
)
def test_bad_config(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(**changes)
