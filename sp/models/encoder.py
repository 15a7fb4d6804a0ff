"""Encoder: a bidirectional encoder with learned positions and post-LayerNorm, after BERT.

Tensor names end in their shape, one letter per dim:

    B  batch             D  model width        H  heads
    S  sequence          F  MLP width          K  width of one head (D = H·K)
    V  vocabulary
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class EncoderConfig:
    vocab_size: int = 256  # bytes
    max_length: int = 512
    layers: int = 4
    heads: int = 4
    width: int = 128
    mlp_ratio: int = 4
    norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_length", "layers", "heads", "width", "mlp_ratio"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")


class EncoderOutput(NamedTuple):
    hidden: Tensor  # BSD
    loss: Tensor | None  # scalar, None without labels


class Attention(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        q_BHSK, k_BHSK, v_BHSK = (self.split_heads(project(x_BSD)) for project in (self.q, self.k, self.v))
        y_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHSK, v_BHSK)
        y_BSD = y_BHSK.transpose(1, 2).flatten(2)  # BHSK -> BSHK -> BSD
        return self.out(y_BSD)

    def split_heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.view(*x_BSD.shape[:2], self.heads, -1).transpose(1, 2)  # BSD -> BSHK -> BHSK


class MLP(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.mlp_ratio * config.width)
        self.out = nn.Linear(config.mlp_ratio * config.width, config.width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        h_BSF = F.gelu(self.up(x_BSD))
        return self.out(h_BSF)


class Block(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = nn.LayerNorm(config.width, config.norm_eps)
        self.mlp = MLP(config)
        self.mlp_norm = nn.LayerNorm(config.width, config.norm_eps)

    def forward(self, x_BSD: Tensor) -> Tensor:
        x_BSD = self.attention_norm(x_BSD + self.attention(x_BSD))
        return self.mlp_norm(x_BSD + self.mlp(x_BSD))


class MaskedLMHead(nn.Module):
    """Hidden states to logits, through one more dense layer and the (tied) token embedding."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.vocab = nn.Linear(config.width, config.vocab_size)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        return self.vocab(self.norm(F.gelu(self.dense(hidden_BSD))))


class Encoder(nn.Module):
    def __init__(self, config: EncoderConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or EncoderConfig()
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.max_length, config.width)
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = MaskedLMHead(config)
        self.head.vocab.weight = self.tokens.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Normal weights and zero biases, as in BERT: post-LayerNorm needs no scaling with depth."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02)

    def forward(self, ids_BS: Tensor, labels: Tensor | None = None) -> EncoderOutput:
        length = ids_BS.shape[1]
        if length > self.config.max_length:
            raise ValueError(f"sequence of {length} tokens, but max_length is {self.config.max_length}")
        positions_S = torch.arange(length, device=ids_BS.device)
        hidden_BSD = self.norm(self.tokens(ids_BS) + self.positions(positions_S))  # BS -> BSD, SD broadcasts
        for block in self.blocks:
            hidden_BSD = block(hidden_BSD)
        return EncoderOutput(hidden_BSD, None if labels is None else self.masked_loss(hidden_BSD, labels))

    def masked_loss(self, hidden_BSD: Tensor, labels_BS: Tensor) -> Tensor:
        """Mean cross entropy of the tokens that have a label; the label -100 does not count."""
        logits_NV = self.head(hidden_BSD).flatten(0, 1)  # N = B·S
        return F.cross_entropy(logits_NV, labels_BS.flatten(), ignore_index=-100)
