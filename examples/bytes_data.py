"""Real text that every machine has: the source code of Python's own standard library, as bytes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

VOCABULARY = 256


class PythonSources:
    """The modules at the top of the standard library in alphabetical order, one after another: 4 to 5 MB."""

    def __init__(self) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self.text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)

    def batch(self, step: int, size: int, length: int) -> Tensor:
        """[size, length] token ids, the same for the same step on every rank and in every run."""
        random = torch.Generator().manual_seed(step)
        starts = torch.randint(len(self.text) - length, (size,), generator=random)
        return torch.stack([self.text[start : start + length] for start in starts.tolist()]).long()
