"""Export: `torch.export` with a symbolic sequence length, and the range of lengths for which its graph holds.

torch.export proves its graph for a whole range of sizes or refuses; `x[:, 1:]` holds from S = 3 on, a model with 512
positions up to S = 512.  The refusal says, more or less, which range would do, so that is tried next.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from sp.errors import UnsupportedModelError
from sp.passes.fixing import fixing_line

_ATTEMPTS = 6
_ADVICE = {
    "UserError": "read sizes from the inputs (x.shape), and keep Python's `if` off the contents of tensors",
    "GuardOnDataDependentSymNode": "keep Python's `if` and `int()` off the contents of tensors; use torch.where",
}


@dataclass(frozen=True)
class Lengths:
    """The global lengths for which a graph holds."""

    shortest: int = 2
    longest: int | None = None

    def holds(self, length: int) -> bool:
        return self.shortest <= length <= (self.longest or length)


@dataclass(frozen=True)
class Axes:
    """Which dim of each example is the sequence and which the batch.  fixed: batch sizes that the model insists on."""

    sequence: Sequence[int | None]
    batch: Sequence[int | None]
    fixed: frozenset[int] = frozenset()

    def dynamic(self, examples: Sequence[torch.Tensor], lengths: Lengths) -> tuple[dict[int, object], ...]:
        """What torch.export calls dynamic shapes: one symbol S, one symbol for each size of a batch."""
        size = Dim("S", min=lengths.shortest, max=lengths.longest)
        shapes: list[dict[int, object]] = []
        for example, sequence, batch in zip(examples, self.sequence, self.batch, strict=True):
            dims: dict[int, object] = {} if sequence is None else {sequence: size}
            if batch is not None and example.shape[batch] > 1 and example.shape[batch] not in self.fixed:
                dims[batch] = Dim(f"B{example.shape[batch]}")
            shapes.append(dims)
        return tuple(shapes)


def export(
    flat: nn.Module, model: nn.Module, examples: Callable[[int], list[torch.Tensor]], axes: Axes
) -> tuple[ExportedProgram, Lengths]:
    """Export `flat` (which calls `model`) and say for which lengths.

    examples: makes inputs of at least that length.  Raises UnsupportedModelError."""
    try:
        return _export(flat, model, examples, axes, Lengths())
    except _FixedLengthError as error:  # perhaps the length at hand is a special one, as 5 is for x[:, -5:]
        longer = error.length + 1
        try:
            return _export(flat, model, lambda least: examples(max(least, longer)), axes, Lengths())
        except UnsupportedModelError:
            raise error from error.__cause__


class _FixedLengthError(UnsupportedModelError):
    length: int


def _export(
    flat: nn.Module, model: nn.Module, examples: Callable[[int], list[torch.Tensor]], axes: Axes, lengths: Lengths
) -> tuple[ExportedProgram, Lengths]:
    message = ""
    for _ in range(_ATTEMPTS):
        inputs = examples(lengths.shortest)
        try:
            with torch.enable_grad():
                shapes = (axes.dynamic(inputs, lengths),)
                return torch.export.export(flat, tuple(inputs), dynamic_shapes=shapes, strict=False), lengths
        except UnsupportedModelError:
            raise
        except Exception as error:
            message = str(error)
            narrowed, settled = _narrowed(message, lengths), replace(axes, fixed=axes.fixed | _fixed_batches(message))
            if _fixed_length(message) or (narrowed, settled) == (lengths, axes):
                raise _untraceable(error, model, _fixed_at(flat, inputs, axes, lengths, message)) from error
            lengths, axes = narrowed, settled
    raise UnsupportedModelError(
        f"torch.export finds no range of sequence lengths for which one graph of {type(model).__name__} holds",
        needed=f"a forward that does the same for every length; not proven: {_unproven(message)}",
        remedy="look for slices and sizes computed from the length; torch.export.draft_export names every place",
    )


def _unproven(message: str) -> str:
    """What torch.export would have to know, in terms of the length S."""
    guards = re.findall(
        r"^\s*- Not all values of S = (\S+) in the specified range.* satisfy the generated guard (.+)\.$",
        message,
        re.MULTILINE,
    )
    return "; ".join(guard.replace(size, "S") for size, guard in guards)


def _fixed_length(message: str) -> str | None:
    """What S must be, where the model allows no range."""
    fixed = re.search(r"^\s*S = (?!Dim\()(.+)$", message, re.MULTILINE)
    return fixed[1].strip() if fixed else None


def _fixed_batches(message: str) -> frozenset[int]:
    return frozenset(int(size) for size in re.findall(r"^\s*B(\d+) = ", message, re.MULTILINE))


def _narrowed(message: str, lengths: Lengths) -> Lengths:
    """The range that torch.export asks for; one step up where it only says that this range will not do."""
    suggested = re.search(r"^\s*S = Dim\('S'(?:, min=(\d+))?(?:, max=(\d+))?\)", message, re.MULTILINE)
    if suggested:
        low, high = suggested.groups()
        return Lengths(max(lengths.shortest, int(low or 2)), int(high) if high else lengths.longest)
    guards = _unproven(message)
    if not guards:
        return lengths
    if f"S != {lengths.longest}" in guards.split("; "):  # x[:S] of a table is the whole table at its full length
        return replace(lengths, longest=cast(int, lengths.longest) - 1)
    lowest = re.search(r"in the specified range (\d+) <= S", message)
    return replace(lengths, shortest=max(lengths.shortest, int(lowest[1]) if lowest else 0) + 1)


def _fixed_at(flat: nn.Module, inputs: list[torch.Tensor], axes: Axes, lengths: Lengths, message: str) -> str:
    """The line of the message that says where the length became a constant, if it did."""
    fixed = _fixed_length(message) or ""

    def trace() -> object:
        shapes = (axes.dynamic(inputs, lengths),)
        return torch.export.export(flat, tuple(inputs), dynamic_shapes=shapes, strict=False)

    line = fixing_line(trace, int(fixed)) if fixed.isdigit() else None
    return f"\n  at:     {line}" if line else ""


def _untraceable(error: Exception, model: nn.Module, fixed_at: str) -> UnsupportedModelError:
    name, message = type(model).__name__, str(error)
    fixed = _fixed_length(message)
    if fixed:
        only = f"fixes its sequence length at {fixed}" if fixed.isdigit() else f"takes only some lengths: S = {fixed}"
        kind = _FixedLengthError if fixed.isdigit() else UnsupportedModelError
        refused = kind(
            f"{name} {only}{fixed_at}",
            needed="a forward that works for any length",
            remedy="read sizes from the inputs (x.shape) instead of a constant; " + " ".join(_lines(message)[1:3]),
        )
        if isinstance(refused, _FixedLengthError):
            refused.length = int(fixed)
        return refused
    advice = "the model itself may refuse this call: try it without sp"
    return UnsupportedModelError(
        f"torch.export cannot trace {name}: {type(error).__name__}: {(_lines(message) or [''])[0]}{_place(error)}",
        remedy=_ADVICE.get(type(error).__name__, advice),
    )


def _lines(message: str) -> list[str]:
    return [line.strip() for line in message.splitlines() if line.strip()]


def _place(error: Exception) -> str:
    """The innermost line outside of torch and sp that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    frames = [frame for frame in frames if "/sp/passes/" not in frame.filename]
    return f"\n  at:     {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
