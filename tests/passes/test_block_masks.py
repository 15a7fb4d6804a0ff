"""While a model is traced, create_block_mask looks at one position; everything else makes the positions it asks for."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from sp.passes.block_masks import OneBlock
from sp.passes.modes import Watch


def causal(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return i >= j


def test_one_block() -> None:
    """Under another mode too, entered before or later; the lengths stay what they are."""
    whole = create_block_mask(causal, None, None, 300, 300, device="cpu")
    with OneBlock(), Watch():
        one = create_block_mask(causal, None, None, 300, 300, device="cpu")
    assert whole.kv_num_blocks.shape == (1, 1, 3)
    assert one.kv_num_blocks.shape == (1, 1, 1)
    assert one.seq_lengths == whole.seq_lengths == (300, 300)


def test_others_are_left_alone() -> None:
    with OneBlock():
        mask = create_mask(causal, None, None, 5, 5, device="cpu")
        places = torch.arange(7)
    assert mask.shape == (1, 1, 5, 5)
    assert len(places) == 7
