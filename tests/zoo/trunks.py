"""Diffusion transformers of `diffusers`: two blocks each, hidden states in.

Flux takes a sequence as it is.  DiT and SD3 cut an image into patches first, which fixes their number: their blocks are
the trunk."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from torch import Tensor, nn

from tests.zoo.family import BATCH, WIDTH, Family, seeded

HEADS: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2}
TEXT_TOKENS = 6


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


class DiTTrunk(nn.Module):
    """The blocks of a DiT between its patch embedding and its last projection."""

    def __init__(self) -> None:
        super().__init__()
        self.dit = diffusers.DiTTransformer2DModel(**HEADS, sample_size=8, num_embeds_ada_norm=10)

    def forward(self, hidden_states: Tensor, timestep: Tensor, class_labels: Tensor) -> Tensor:
        """[B, S, C], [B], [B] → [B, S, C]."""
        for block in self.dit.transformer_blocks:
            hidden_states = block(hidden_states, timestep=timestep, class_labels=class_labels)
        return hidden_states


class SD3Trunk(nn.Module):
    """The joint blocks of a Stable Diffusion 3: image and text tokens attend to one another."""

    def __init__(self) -> None:
        super().__init__()
        widths = {"joint_attention_dim": WIDTH, "caption_projection_dim": WIDTH, "pooled_projection_dim": WIDTH}
        self.sd3 = diffusers.SD3Transformer2DModel(**HEADS, **widths, sample_size=8, pos_embed_max_size=8)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor) -> Tensor:
        """[B, S, C], [B, T, C], [B, C] → [B, S, C]."""
        for block in self.sd3.transformer_blocks:
            encoder_hidden_states, hidden_states = block(hidden_states, encoder_hidden_states, temb)
        return hidden_states


def flux() -> nn.Module:
    widths = {"joint_attention_dim": WIDTH, "pooled_projection_dim": WIDTH, "in_channels": 16}
    return diffusers.FluxTransformer2DModel(**HEADS, **widths, num_single_layers=1, axes_dims_rope=(2, 2, 4))


def dit_inputs(length: int) -> dict[str, Tensor]:
    return {
        "hidden_states": noise(length, BATCH, length, WIDTH),
        "timestep": torch.tensor([3, 7]),
        "class_labels": torch.tensor([1, 4]),
    }


def sd3_inputs(length: int) -> dict[str, Tensor]:
    return {
        "hidden_states": noise(length, BATCH, length, WIDTH),
        "encoder_hidden_states": noise(1, BATCH, TEXT_TOKENS, WIDTH),
        "temb": noise(2, BATCH, WIDTH),
    }


def flux_inputs(length: int) -> dict[str, Any]:
    """A tuple is asked for: torch.export does not know the keys of diffusers' output classes."""
    return {
        "hidden_states": noise(length, BATCH, length, 16),
        "encoder_hidden_states": noise(1, BATCH, TEXT_TOKENS, WIDTH),
        "pooled_projections": noise(2, BATCH, WIDTH),
        "timestep": torch.tensor([0.3, 0.7], dtype=torch.float64),
        "img_ids": noise(3, length, 3),
        "txt_ids": noise(4, TEXT_TOKENS, 3),
        "return_dict": False,
    }


TRUNKS = (
    Family("DiT (trunk)", DiTTrunk, dit_inputs, mask=False),
    Family("SD3 (trunk)", SD3Trunk, sd3_inputs, mask=False, sequence_dim={"hidden_states": 1}),
    Family("Flux", flux, flux_inputs, mask=False, sequence_dim={"hidden_states": 1, "img_ids": 0}),
)
