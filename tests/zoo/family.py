"""What the zoo knows of one model family: how to build it tiny and with random weights, and how to call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

VOCAB, WIDTH, BATCH = 97, 32, 2
Inputs = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """build: the model, tiny and with random weights.  inputs, labels: keyword arguments for a length S.

    labels: None where the model has no loss of its own.  mask: whether it takes an attention_mask of shape [B, S].
    packed: whether position_ids that restart say where documents begin, as in transformers' decoders.
    sequence_dim: as `sp.parallelize` takes it, for all arguments that any call passes."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    labels: Inputs | None = None
    mask: bool = True
    packed: bool = False
    sequence_dim: int | Mapping[str, int] = 1


def seeded(length: int) -> torch.Generator:
    return torch.Generator().manual_seed(length)


def ids(length: int) -> dict[str, Tensor]:
    """Token ids [B, S]."""
    return {"input_ids": torch.randint(0, VOCAB, (BATCH, length), generator=seeded(length))}


def token_labels(classes: int = VOCAB) -> Inputs:
    """Labels [B, S]; more than a third of the first row do not count."""

    def labels(length: int) -> dict[str, Tensor]:
        labels = torch.randint(0, classes, (BATCH, length), generator=seeded(length + 1))
        labels[0, : length * 2 // 5] = -100
        return {"labels": labels}

    return labels


def class_labels(classes: int) -> Inputs:
    """One label [B] for each sequence."""
    return lambda length: {"labels": torch.arange(BATCH) % classes}


def states(name: str, width: int = WIDTH) -> Inputs:
    """Hidden states [B, S, C] in fp64."""
    return lambda length: {name: torch.randn(BATCH, length, width, generator=seeded(length), dtype=torch.float64)}
