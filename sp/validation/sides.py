"""The two sides of a check: something to call, with parameters of its own, and what one call of it lets us see."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from sp.errors import InputError


@dataclass(frozen=True)
class Trial:
    """One call that both sides make.  names, inputs: its tensors; those that require grad get their gradient compared.
    outputs: names of what comes back.  seed: of the random numbers of the call, and of the weights of its outputs."""

    lengths: tuple[int, ...]
    seed: int
    names: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]

    @property
    def tokens(self) -> str:
        return f"{' and '.join(map(str, self.lengths))} tokens"


@dataclass(frozen=True)
class Seen:
    """values: outputs, and buffers and inputs that the call has changed.  gradients: scalar → name → gradient."""

    values: Mapping[str, Tensor]
    gradients: Mapping[str, Mapping[str, Tensor | None]]


@dataclass(frozen=True)
class Side:
    """call: flat tensors in, flat tensors out.  parameters, buffers: its own, under the model's names."""

    call: Callable[..., Sequence[Tensor]]
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Twin:
    """A copy of a module over parameters that share the values, but not the gradients, of `model`'s."""

    module: nn.Module
    parameters: Mapping[str, Tensor] = field(repr=False)
    buffers: Mapping[str, Tensor] = field(repr=False)

    @staticmethod
    def of(module: nn.Module, model: nn.Module) -> Twin:
        """module: `model` itself, or a graph that holds its parameter objects."""
        parameters = {name: nn.Parameter(p.detach(), p.requires_grad) for name, p in model.named_parameters()}
        buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        memo: dict[int, object] = {id(p): parameters[name] for name, p in model.named_parameters()}
        memo.update({id(buffer): buffers[name] for name, buffer in model.named_buffers()})
        return Twin(copy.deepcopy(module, memo), parameters, buffers)


def standalone(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """A copy of the model on the CPU, its floating parameters, buffers and plain tensor attributes in `dtype`.

    InputError: it has no values (meta device) or cannot be copied."""
    if any(value.is_meta for value in (*model.parameters(), *model.buffers())):
        raise InputError(
            "the model's parameters are on the meta device: there are no values to compute with",
            needed="a model with values",
            remedy="check a small configuration of it, made on the CPU",
        )
    try:
        made = copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied: {error}",
            needed="a model that copy.deepcopy takes: the check runs copies, so that yours stays as it is",
        ) from error
    made = made.to("cpu", dtype)
    for module in made.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                vars(module)[name] = settled(value, dtype)
    return made


def settled(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """On the CPU, and in `dtype` if it is a floating one."""
    return value.detach().to("cpu", dtype if value.is_floating_point() else None)


def shake(side: Side, trials: Sequence[Trial], eps: float) -> list[Trial]:
    """Move all floating parameters and buffers of a side, and the inputs of the trials returned, by `eps` of each."""
    generator = torch.Generator().manual_seed(0)

    def shaken(value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        signs = torch.randint(0, 2, value.shape, generator=generator).to(value.dtype) * 2 - 1
        return (value.detach() * (1 + eps * signs)).requires_grad_(value.requires_grad)

    for leaf in (*side.parameters.values(), *side.buffers.values()):
        leaf.data = shaken(leaf).detach()  # new memory: the plain model keeps its values
    return [replace(trial, inputs=tuple(map(shaken, trial.inputs))) for trial in trials]


def observe(side: Side, trial: Trial) -> Seen:
    """One call and one backward for each scalar: the loss, if there is one, and the sum of all floating outputs, each
    element weighted by a random number of its own."""
    values: dict[str, Tensor] = {}
    gradients: dict[str, Mapping[str, Tensor | None]] = {}
    for scalar in ("outputs", "loss"):
        before = {name: buffer.clone() for name, buffer in side.buffers.items()}
        inputs = [given.detach().clone().requires_grad_(given.requires_grad) for given in trial.inputs]
        results = dict(zip(trial.outputs, side.call(*inputs), strict=True))
        if scalar == "outputs":
            values.update({name: value.detach().clone() for name, value in results.items()})
            values.update(_changed(trial, inputs, side, before))
        total = _scalar(scalar, results, trial.seed)
        if total is None:
            continue
        for parameter in side.parameters.values():
            parameter.grad = None
        total.backward()
        named = {**side.parameters, **dict(zip(trial.names, inputs, strict=True))}
        gradients[scalar] = {name: leaf.grad for name, leaf in named.items() if leaf.requires_grad}
    return Seen(values, gradients)


def _changed(trial: Trial, inputs: Sequence[Tensor], side: Side, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    named = zip(trial.names, inputs, trial.inputs, strict=True)
    changed = {f"input {name}, changed": now.detach().clone() for name, now, old in named if not _same(now, old)}
    buffers = side.buffers.items()
    return changed | {f"buffer {name}, changed": b.clone() for name, b in buffers if not _same(b, before[name])}


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _scalar(name: str, results: Mapping[str, Tensor], seed: int) -> Tensor | None:
    """What to differentiate, None if nothing of that name can be."""
    if name == "loss":
        loss = results.get("loss")
        return loss if loss is not None and loss.requires_grad and loss.numel() == 1 else None
    generator = torch.Generator().manual_seed(seed)
    parts: list[Tensor] = []
    for value in results.values():
        if value.requires_grad:
            reals = torch.view_as_real(value) if value.is_complex() else value
            weights = torch.randn(reals.shape, generator=generator, dtype=torch.float64)
            parts.append((reals * weights.to(reals.dtype)).sum().double())
    return torch.stack(parts).sum() if parts else None
