"""What a rank of a world of processes runs in test_drift.py."""

import torch
from torch import Tensor

import sp
from benchmarks.course import Training

SHORT = Training(steps=3, looks=(), batch=2, layers=1)


def trained_twice() -> list[tuple[list[float], list[Tensor]]]:
    """Of two trainings under each of three strategies: losses, and all gradients of the last step."""
    return [_trained() for _ in range(2)]


def _trained() -> tuple[list[float], list[Tensor]]:
    losses, gradients = list[float](), list[Tensor]()
    for strategy in ("striped", "ring", "ulysses"):
        model = SHORT.model()
        run = sp.parallelize(model, strategy, compile=False)
        optimizer = torch.optim.AdamW(model.parameters(), SHORT.rate)
        for ids in SHORT.batches():
            optimizer.zero_grad()
            loss = run(ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        gradients += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return losses, gradients
