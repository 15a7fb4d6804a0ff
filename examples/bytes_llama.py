"""What the examples of frameworks share: a small Llama of transformers over bytes, its texts, and the last word."""

from __future__ import annotations

import argparse
import math

import torch
from bytes_data import VOCABULARY, PythonSources
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

Sample = dict[str, Tensor]


def options(what: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1, help="batches at a time; the ranks are shared out to them")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def make_model() -> LlamaForCausalLM:
    """2.4 million parameters with random weights, the same on every rank."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=131_072, **sizes, **heads))


def texts(count: int, length: int, seed: int = 0) -> list[Sample]:
    """A data set: pieces of Python's own source code, the labels being the bytes themselves."""
    return [{"input_ids": ids, "labels": ids.clone()} for ids in PythonSources().batch(seed, count, length)]


@torch.no_grad()
def mean_loss(model: nn.Module, samples: list[Sample]) -> float:
    """Over the samples, one by one."""
    model.eval()
    losses = [model(**{name: value[None] for name, value in sample.items()}).loss.item() for sample in samples]
    return sum(losses) / len(losses)


def verdict(losses: list[float], spread: float, alone: float) -> bool:
    """Print how training went, and the trained model's loss over the ranks and in one process; whether they agree."""
    same = math.isclose(spread, alone, rel_tol=1e-4)
    print(f"trained from loss {losses[0]:.4f} to {losses[-1]:.4f} in {len(losses)} batches or steps")
    print(
        f"loss on other texts {spread:.4f} over the ranks, {alone:.4f} alone: {'the same' if same else 'NOT the same'}"
    )
    return same
