"""Small decoders of transformers with random weights, whose tokens differ enough for a mistake to change them."""

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

VOCAB = 31
FAMILIES: Mapping[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Mistral": {"sliding_window": 5},  # prompts are longer
    "GPT2": {},
}


def decoder(family: str, dtype: torch.dtype = torch.float64) -> Any:
    """In eval mode; the same weights on each call."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    tokens = {"vocab_size": VOCAB, "eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
    if family == "GPT2":
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=64, **tokens)
        )
    else:
        shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        config = getattr(transformers, f"{family}Config")(**shape, **heads, **tokens, **FAMILIES[family])
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.4)
    return model.to(dtype).eval()


def prompt(length: int, batch: int = 2) -> Tensor:
    return torch.randint(1, VOCAB, (batch, length), generator=torch.Generator().manual_seed(length))


def left_padded(ids: Tensor, count: int = 3) -> dict[str, Tensor]:
    """The prompt and its attention_mask, the first `count` tokens of the first row being none."""
    mask = torch.ones_like(ids)
    mask[0, :count] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def cache_name(model: nn.Module) -> str:
    """What this version of transformers calls a cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
