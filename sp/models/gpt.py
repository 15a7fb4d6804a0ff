"""GPT: a decoder with learned positions, pre-LayerNorm and a GELU MLP, after GPT-2.

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
class GPTConfig:
    vocab_size: int = 256  # bytes
    max_length: int = 1024
    layers: int = 4
    heads: int = 4
    width: int = 128
    mlp_ratio: int = 4
    dropout: float = 0.0  # on embeddings and residual branches; never inside attention
    tie_embeddings: bool = True
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_length", "layers", "heads", "width", "mlp_ratio"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")


class LMOutput(NamedTuple):
    logits: Tensor  # BSV
    loss: Tensor | None  # scalar, None without labels


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        q_BSD, k_BSD, v_BSD = self.qkv(x_BSD).chunk(3, dim=-1)
        q_BHSK, k_BHSK, v_BHSK = map(self.split_heads, (q_BSD, k_BSD, v_BSD))
        y_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHSK, v_BHSK, is_causal=True)
        y_BSD = y_BHSK.transpose(1, 2).flatten(2)  # BHSK -> BSHK -> BSD
        return self.out(y_BSD)

    def split_heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.view(*x_BSD.shape[:2], self.heads, -1).transpose(1, 2)  # BSD -> BSHK -> BHSK


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.mlp_ratio * config.width)
        self.out = nn.Linear(config.mlp_ratio * config.width, config.width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        h_BSF = F.gelu(self.up(x_BSD))
        return self.out(h_BSF)


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width, config.norm_eps)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BSD: Tensor) -> Tensor:
        x_BSD = x_BSD + self.dropout(self.attention(self.attention_norm(x_BSD)))
        return x_BSD + self.dropout(self.mlp(self.mlp_norm(x_BSD)))


class GPT(nn.Module):
    def __init__(self, config: GPTConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or GPTConfig()
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.max_length, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.tokens.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Normal weights and zero biases; as in GPT-2, what adds to the residual shrinks with depth."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                shrink = (2 * self.config.layers) ** -0.5 if name.endswith("out.weight") else 1.0
                parameter.normal_(0.0, 0.02 * shrink)

    def forward(self, ids_BS: Tensor, labels: Tensor | None = None) -> LMOutput:
        length = ids_BS.shape[1]
        if length > self.config.max_length:
            raise ValueError(f"sequence of {length} tokens, but max_length is {self.config.max_length}")
        positions_S = torch.arange(length, device=ids_BS.device)
        x_BSD = self.dropout(self.tokens(ids_BS) + self.positions(positions_S))  # BS -> BSD, SD broadcasts
        for block in self.blocks:
            x_BSD = block(x_BSD)
        logits_BSV = self.head(self.norm(x_BSD))
        return LMOutput(logits_BSV, None if labels is None else next_token_loss(logits_BSV, labels))


def next_token_loss(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """Mean cross entropy of each token's prediction of the next one; the label -100 does not count."""
    predictions_NV = logits_BSV[:, :-1].flatten(0, 1)  # N = B·(S-1)
    targets_N = labels_BS[:, 1:].flatten()
    return F.cross_entropy(predictions_NV, targets_N, ignore_index=-100)
