"""Comparing a parallelized model with the model it was made from: outputs and every gradient, relatively.

Losses alone hide wrong gradients for years; absolute tolerances hide them at small scale.  So: one call, one backward,
and for each tensor the norm of the difference over the norm of what is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

# A gradient that is zero in exact arithmetic (a key bias under softmax) is round-off on both sides: it is measured
# against the norm of all gradients together, scaled by this.
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class Run:
    """What one call and one backward gave: outputs by position, gradients by parameter name."""

    outputs: tuple[Tensor, ...]
    gradients: Mapping[str, Tensor]


@dataclass(frozen=True)
class Errors:
    """Relative errors of one run against another."""

    outputs: float
    gradients: float
    worst: str

    def within(self, bound: float) -> bool:
        return max(self.outputs, self.gradients) <= bound


def run_once(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Run:
    """Call `model`, backpropagate its loss (`.loss`, or the only output), and collect everything it made."""
    model.zero_grad()
    output = model(*args, **kwargs)
    outputs = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    loss = getattr(output, "loss", None)
    (outputs[0].double().square().mean() if loss is None else cast(Tensor, loss)).backward()
    gradients = {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
    return Run(tuple(leaf.detach() for leaf in outputs), gradients)


def errors_between(run: Run, reference: Run) -> Errors:
    """The largest relative error among outputs and among gradients; AssertionError if a gradient is missing."""
    assert run.gradients.keys() == reference.gradients.keys(), "the runs differ in which parameters have gradients"
    outputs = max(relative_error(a, b) for a, b in zip(run.outputs, reference.outputs, strict=True))
    floor = _NEGLIGIBLE * total_norm(reference.gradients.values())
    errors = {name: relative_error(run.gradients[name], right, floor) for name, right in reference.gradients.items()}
    worst = max(errors, key=lambda name: errors[name])
    return Errors(outputs, errors[worst], worst)


def relative_error(found: Tensor, right: Tensor, floor: float = 0.0) -> float:
    """|found - right| / max(|right|, floor), in the 2-norm and in fp64, over what is finite on either side.

    Equal infinities, and NaN on both sides, count as equal; anything else that is not finite is an infinite error."""
    assert found.shape == right.shape, f"{tuple(found.shape)} is not {tuple(right.shape)}"
    found, right = found.detach().double(), right.detach().double()
    same = (found == right) | (found.isnan() & right.isnan())
    difference = torch.where(same, 0.0, found - right).norm()
    if not difference.isfinite():
        return math.inf
    scale = max(float(torch.where(right.isfinite(), right, 0.0).norm()), floor)
    return float(difference) / scale if scale else float(difference)


def total_norm(tensors: Any) -> float:
    return float(torch.stack([tensor.double().norm() for tensor in tensors]).norm())
