"""The parameters that the ops of a program share."""

from __future__ import annotations

import torch
from torch import nn

VOCAB, D, HEADS, LONGEST, EXPERTS = 7, 8, 4, 96, 3


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(VOCAB, D)
        self.a, self.b, self.c = (nn.Linear(D, D) for _ in range(3))
        self.head, self.one, self.router = nn.Linear(D, VOCAB), nn.Linear(D, 1), nn.Linear(D, EXPERTS)
        self.grouped = nn.Linear(D, D // 2)
        # Its own eps, 2e-16 in fp64, makes 7e7 of a gradient through the zeros that equal neighbours leave.
        self.norm, self.rms = nn.LayerNorm(D), nn.RMSNorm(D, eps=1e-5)
        self.positions = nn.Parameter(torch.randn(LONGEST, D))
        self.prefix = nn.Parameter(torch.randn(1, 2, D))
        self.matrix = nn.Parameter(torch.randn(LONGEST, LONGEST) / 8)
        self.experts = nn.Parameter(torch.randn(EXPERTS, D, D) / 3)
        self.each, self.cross = nn.Conv1d(D, D, 3, groups=D, padding=1), nn.Conv1d(D, D, 3, padding=2)
        self.valid = nn.Conv1d(D, D, 2, dilation=1)
        self.register_buffer("weights", torch.linspace(0.5, 1.5, VOCAB))
