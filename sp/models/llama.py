"""Llama: a decoder with rotary positions, grouped key/value heads, RMSNorm and SwiGLU.

Tensor names end in their shape, one letter per dim:

    B  batch             D  model width        H  query heads
    S  sequence          F  MLP width          G  key/value heads (each serves H/G query heads)
    V  vocabulary        R  K/2 rotations      K  width of one head (D = H·K)

Whatever dtype the parameters have is the dtype of the computation, float64 included. Only what 16 bits
cannot hold (rotary angles, the loss) is computed in at least float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LlamaConfig:
    vocab_size: int = 256  # bytes
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    width: int = 128
    mlp_ratio: float = 3.5
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    gqa: Literal["enable_gqa", "repeat_kv"] = "enable_gqa"  # who repeats the heads: SDPA or the model

    def __post_init__(self) -> None:
        for name in ("vocab_size", "layers", "heads", "kv_heads", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % (2 * self.heads):
            raise ValueError(f"width ({self.width}) must be a multiple of 2 * heads ({2 * self.heads})")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.mlp_width < 1:
            raise ValueError(f"mlp_ratio ({self.mlp_ratio}) leaves no MLP at width {self.width}")
        if self.gqa not in ("enable_gqa", "repeat_kv"):
            raise ValueError(f"gqa must be 'enable_gqa' or 'repeat_kv', got {self.gqa!r}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        return int(self.mlp_ratio * self.width)


class LMOutput(NamedTuple):
    logits: Tensor  # BSV
    loss: Tensor | None  # scalar, None without labels


class Rotary(nn.Module):
    """Cosines and sines of the rotary angles: position i turns pair r by i · theta^(-2r/K)."""

    inv_freq_R: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.width, self.theta = config.head_width, config.rope_theta
        self.register_buffer("inv_freq_R", self.frequencies(torch.empty(0)), persistent=False)

    def frequencies(self, like: Tensor) -> Tensor:
        dtype = torch.promote_types(like.dtype, torch.float32)
        pair_R = torch.arange(0, self.width, 2, dtype=dtype, device=like.device)
        return self.theta ** (-pair_R / self.width)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rotary":
        """Recompute after `.to()` and its kin: exact in float64, never 16 bits, filled after `to_empty()`."""
        super()._apply(fn, recurse)
        self.inv_freq_R = self.frequencies(like=self.inv_freq_R)
        return self

    def forward(self, length: int) -> tuple[Tensor, Tensor]:
        positions_S = torch.arange(length, device=self.inv_freq_R.device)
        angles_SR = positions_S[:, None] * self.inv_freq_R
        angles_SK = torch.cat((angles_SR, angles_SR), dim=-1)
        return angles_SK.cos(), angles_SK.sin()


def rotate(x_BHSK: Tensor, cos_SK: Tensor, sin_SK: Tensor) -> Tensor:
    first_BHSR, second_BHSR = x_BHSK.chunk(2, dim=-1)
    turned_BHSK = torch.cat((-second_BHSR, first_BHSR), dim=-1)
    return x_BHSK * cos_SK + turned_BHSK * sin_SK


def repeat_kv(x_BGSK: Tensor, times: int) -> Tensor:
    """Each key/value head `times` in a row, so that there are as many as query heads."""
    x_BGTSK = x_BGSK[:, :, None].expand(-1, -1, times, -1, -1)  # T = times
    return x_BGTSK.flatten(1, 2)  # BGTSK -> BHSK


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.gqa = config.heads, config.kv_heads, config.gqa
        self.q = nn.Linear(config.width, config.heads * config.head_width, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * config.head_width, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * config.head_width, bias=False)
        self.out = nn.Linear(config.heads * config.head_width, config.width, bias=False)

    def forward(self, x_BSD: Tensor, cos_SK: Tensor, sin_SK: Tensor) -> Tensor:
        q_BHSK = rotate(split_heads(self.q(x_BSD), self.heads), cos_SK, sin_SK)
        k_BGSK = rotate(split_heads(self.k(x_BSD), self.kv_heads), cos_SK, sin_SK)
        v_BGSK = split_heads(self.v(x_BSD), self.kv_heads)
        y_BHSK = self.attend(q_BHSK, k_BGSK, v_BGSK)
        y_BSD = y_BHSK.transpose(1, 2).flatten(2)  # BHSK -> BSHK -> BSD
        return self.out(y_BSD)

    def attend(self, q_BHSK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor) -> Tensor:
        if self.gqa == "enable_gqa":
            return F.scaled_dot_product_attention(q_BHSK, k_BGSK, v_BGSK, is_causal=True, enable_gqa=True)
        times = self.heads // self.kv_heads
        k_BHSK, v_BHSK = repeat_kv(k_BGSK, times), repeat_kv(v_BGSK, times)
        return F.scaled_dot_product_attention(q_BHSK, k_BHSK, v_BHSK, is_causal=True)


def split_heads(x_BSD: Tensor, heads: int) -> Tensor:
    return x_BSD.view(*x_BSD.shape[:2], heads, -1).transpose(1, 2)  # BSD -> BSHK -> BHSK


class SwiGLU(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up = nn.Linear(config.width, config.mlp_width, bias=False)
        self.out = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        h_BSF = F.silu(self.gate(x_BSD)) * self.up(x_BSD)
        return self.out(h_BSF)


class Block(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x_BSD: Tensor, cos_SK: Tensor, sin_SK: Tensor) -> Tensor:
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), cos_SK, sin_SK)
        return x_BSD + self.mlp(self.mlp_norm(x_BSD))


class Llama(nn.Module):
    def __init__(self, config: LlamaConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or LlamaConfig()
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.rotary = Rotary(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Normal weights; as in GPT-2, what adds to the residual shrinks with depth."""
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                shrink = (2 * self.config.layers) ** -0.5 if name.endswith("out.weight") else 1.0
                parameter.normal_(0.0, 0.02 * shrink)

    def forward(self, ids_BS: Tensor, labels: Tensor | None = None) -> LMOutput:
        x_BSD = self.tokens(ids_BS)
        cos_SK, sin_SK = (table_SK.to(x_BSD.dtype) for table_SK in self.rotary(ids_BS.shape[1]))
        for block in self.blocks:
            x_BSD = block(x_BSD, cos_SK, sin_SK)
        logits_BSV = self.head(self.norm(x_BSD))
        return LMOutput(logits_BSV, None if labels is None else next_token_loss(logits_BSV, labels))


def next_token_loss(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """Mean cross entropy of each token's prediction of the next one; the label -100 does not count.

    The labels move, not the logits: the last token gets -100, and nothing as large as the logits is copied.
    """
    targets_BS = F.pad(labels_BS, (0, 1), value=-100)[:, 1:]
    logits_NV = logits_BSV.flatten(0, 1)  # N = B·S
    if logits_NV.dtype.itemsize < 4:
        logits_NV = logits_NV.float()
    return F.cross_entropy(logits_NV, targets_BS.flatten(), ignore_index=-100)
