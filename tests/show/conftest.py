"""The reference models, tiny, at every stage of the pipeline."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn

import sp
from sp.models import GPT, Encoder, EncoderConfig, GPTConfig, Llama, LlamaConfig
from sp.passes import pipeline
from sp.passes.manager import run_passes
from sp.program import Program
from sp.show import Report

MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": lambda: GPT(GPTConfig(max_length=64, layers=2, heads=2, width=16)),
    "llama": lambda: Llama(LlamaConfig(layers=2, heads=4, kv_heads=2, width=32, gqa="repeat_kv")),
    "encoder": lambda: Encoder(EncoderConfig(max_length=64, layers=2, heads=2, width=16)),
}

Inspect = Callable[..., Report]
Stages = Callable[[str], dict[str, Program]]


@cache
def inspect_model(name: str, strategy: str = "striped", world: int = 8, length: int = 32) -> Report:
    ids = torch.zeros(2, length, dtype=torch.long)
    return sp.inspect(MODELS[name](), (ids,), {"labels": ids}, strategy=strategy, world_size=world)


@cache
def run_stages(name: str) -> dict[str, Program]:
    captured = inspect_model(name).captured
    stages = {"capture": captured}
    run_passes(captured, pipeline(), stages.__setitem__, keep_stages=True)
    return stages


@pytest.fixture
def inspect() -> Inspect:
    """`inspect("llama", strategy, world, length)` is the report of a reference model, with labels."""
    return inspect_model


@pytest.fixture
def stages() -> Stages:
    """`stages("llama")` maps each stage to the program that it made, in order."""
    return run_stages
