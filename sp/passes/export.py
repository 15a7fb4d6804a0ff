"""Export: `torch.export` with a symbolic sequence length, and the range of lengths for which its graph holds.

torch.export proves its graph for a whole range of sizes or refuses; `x[:, 1:]` holds from S = 3 on, a model with 512
positions up to S = 512.  The refusal says, more or less, which range would do, so that is tried next.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx.traceback import preserve_node_meta

from sp.errors import UnsupportedModelError
from sp.passes.fixing import fixing_line
from sp.passes.input_dims import Stretch
from sp.passes.release import released

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
    """For each example: what of which sequence each dim holds, and the dim of the batch.

    fixed: batch sizes that the model insists on.  grows: whether the sequence is a cache's, that new tokens join; then
    torch.export asserts in the graph what it cannot prove."""

    sequences: Sequence[Mapping[int, Stretch]]
    batch: Sequence[int | None]
    fixed: frozenset[int] = frozenset()
    grows: bool = False

    @property
    def count(self) -> int:
        """How many sequences there are."""
        return 1 + max(stretch.sequence for dims in self.sequences for stretch in dims.values())

    def name(self, number: int) -> str:
        """What torch.export calls the size of a sequence.  (`S + 1` it cannot parse: to sympy, S is something else.)"""
        return "T" if self.grows else f"S{number + 1}" if number else "S"

    def dynamic(self, examples: Sequence[torch.Tensor], lengths: Sequence[Lengths]) -> tuple[dict[int, object], ...]:
        """What torch.export calls dynamic shapes: a symbol for each sequence, one for each size of a batch."""
        sizes = [Dim(self.name(number), min=one.shortest, max=one.longest) for number, one in enumerate(lengths)]
        shapes: list[dict[int, object]] = []
        for example, sequences, batch in zip(examples, self.sequences, self.batch, strict=True):
            dims: dict[int, object] = {
                dim: sizes[stretch.sequence] + stretch.more if stretch.more else sizes[stretch.sequence]
                for dim, stretch in sequences.items()
            }
            if batch is not None and example.shape[batch] > 1 and example.shape[batch] not in self.fixed:
                dims[batch] = Dim(f"B{example.shape[batch]}")
            shapes.append(dims)
        return tuple(shapes)


Examples = Callable[[Sequence[int]], list[torch.Tensor]]
Ranges = tuple[Lengths, ...]


@dataclass(frozen=True)
class Exported:
    """What torch.export has made, and for which lengths of each sequence.

    asserting: whether it asserts in the graph what it could not prove; see `assertions`."""

    program: ExportedProgram
    ranges: Ranges
    asserting: bool


def export(flat: nn.Module, model: nn.Module, examples: Examples, axes: Axes) -> Exported:
    """Export `flat`, which calls `model`.

    examples: makes inputs of at least those lengths.  Raises UnsupportedModelError."""
    anything = (Lengths(),) * axes.count
    try:
        return _export(flat, model, examples, axes, anything)
    except UnsupportedModelError as error:
        fixed = _fixed_length(str(error.__cause__)) or ""
        if not fixed.isdigit():
            raise
        longer = int(fixed) + 1  # perhaps the length at hand is a special one, as 5 is for x[:, -5:]
        try:
            return _export(flat, model, lambda least: examples([max(one, longer) for one in least]), axes, anything)
        except UnsupportedModelError:
            raise error from error.__cause__


def _export(flat: nn.Module, model: nn.Module, examples: Examples, axes: Axes, ranges: Ranges) -> Exported:
    message, asserting = "", axes.grows
    for _ in range(_ATTEMPTS):
        with torch.inference_mode(False):
            inputs = examples([lengths.shortest for lengths in ranges])
        try:
            with torch.inference_mode(False), torch.enable_grad(), preserve_node_meta():
                shapes = (axes.dynamic(inputs, ranges),)
                return Exported(_trace(flat, inputs, shapes, asserting), ranges, asserting)
        except UnsupportedModelError:
            raise
        except Exception as error:
            message = str(error)
            if not asserting and " satisfy the generated guard min(" in message:
                asserting = True  # of strides, as min(4*S, 8*S) == 4*S before torch 2.13
                continue
            narrowed = tuple(_narrowed(message, axes.name(number), lengths) for number, lengths in enumerate(ranges))
            fixed = _batches(inputs, axes) if _trips(error) else _fixed_batches(message)
            settled = replace(axes, fixed=axes.fixed | fixed)
            if _fixed_length(message) or (narrowed, settled) == (ranges, axes):
                raise _untraceable(error, model, _fixed_at(flat, inputs, axes, ranges, message)) from error
            ranges, axes = narrowed, settled
    raise UnsupportedModelError(
        f"torch.export finds no range of sequence lengths for which one graph of {type(model).__name__} holds",
        needed=f"a forward that does the same for every length; not proven: {_unproven(message, 'S')}",
        remedy="look for slices and sizes computed from the length, and for two views in a row, of which one is enough "
        "(x.view(-1, D).view(B, S, D)); torch.export.draft_export names every place",
    )


def _trace(flat: nn.Module, inputs: Sequence[torch.Tensor], shapes: object, asserting: bool) -> ExportedProgram:
    return released(
        lambda: torch.export.export(
            flat,
            tuple(inputs),
            dynamic_shapes=cast(Any, shapes),
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=asserting,
        )
    )


def _unproven(message: str, name: str) -> str:
    """What torch.export would have to know, in terms of the length called `name`."""
    guards = re.findall(
        rf"^\s*- Not all values of {name} = (\S+) in the specified range.* satisfy the generated guard (.+)\.$",
        message,
        re.MULTILINE,
    )
    return "; ".join(guard.replace(size, name) for size, guard in guards)


def _fixed_length(message: str) -> str | None:
    """What S must be, where the model allows no range."""
    fixed = re.search(r"^\s*S\d* = (?!Dim\()(.+)$", message, re.MULTILINE)
    return fixed[1].strip() if fixed else None


def _fixed_batches(message: str) -> frozenset[int]:
    return frozenset(int(size) for size in re.findall(r"^\s*B(\d+) = ", message, re.MULTILINE))


def _trips(error: Exception) -> bool:
    """Whether torch itself tripped over a product of three sizes, as under vmap in a mask of flex_attention."""
    return isinstance(error, TypeError) and str(error) == "mul expected 2 arguments, got 3"


def _batches(inputs: Sequence[torch.Tensor], axes: Axes) -> frozenset[int]:
    """All batch sizes: where the batch is a number, fewer sizes are symbols."""
    pairs = zip(inputs, axes.batch, strict=True)
    return frozenset(example.shape[batch] for example, batch in pairs if batch is not None)


def _narrowed(message: str, name: str, lengths: Lengths) -> Lengths:
    """The range that torch.export asks for; one step up where it only says that this range will not do."""
    suggested = re.search(rf"^\s*{name} = Dim\('{name}'(?:, min=(\d+))?(?:, max=(\d+))?\)", message, re.MULTILINE)
    if suggested:
        low, high = suggested.groups()
        return Lengths(max(lengths.shortest, int(low or 2)), int(high) if high else lengths.longest)
    guards = _unproven(message, name)
    if not guards:
        return lengths
    if f"{name} != {lengths.longest}" in guards.split("; "):  # x[:S] of a table is the whole table at its full length
        return replace(lengths, longest=cast(int, lengths.longest) - 1)
    cut = [int(size) for size in re.findall(rf"max\(0, (\d+) \+ \(\(-1\)\*{name}\)\)", guards)]
    if cut and min(cut) <= (lengths.longest or min(cut)):  # table[:, max(0, 512 - S):] is its end, up to its whole
        return replace(lengths, longest=min(cut) - (lengths.longest is not None))
    lowest = re.search(rf"in the specified range (\d+) <= {name}\b", message)
    return replace(lengths, shortest=max(lengths.shortest, int(lowest[1]) if lowest else 0) + 1)


def _fixed_at(flat: nn.Module, inputs: list[torch.Tensor], axes: Axes, ranges: Ranges, message: str) -> str:
    """The line of the message that says where the length became a constant, if it did."""
    fixed = _fixed_length(message) or ""

    def trace() -> object:
        shapes = (axes.dynamic(inputs, ranges),)
        return _trace(flat, inputs, shapes, axes.grows)

    line = fixing_line(trace, int(fixed)) if fixed.isdigit() else None
    return f"\n  at:     {line}" if line else ""


def _untraceable(error: Exception, model: nn.Module, fixed_at: str) -> UnsupportedModelError:
    name, message = type(model).__name__, str(error)
    fixed = _fixed_length(message)
    if fixed:
        only = f"fixes its sequence length at {fixed}" if fixed.isdigit() else f"takes only some lengths: S = {fixed}"
        return UnsupportedModelError(
            f"{name} {only}{fixed_at}",
            needed="a forward that works for any length",
            remedy="read sizes from the inputs (x.shape) instead of a constant; " + _in_words(message),
        )
    advice = "the model itself may refuse this call: try it without sp"
    return UnsupportedModelError(
        f"torch.export cannot trace {name}: {type(error).__name__}: {(_lines(message) or [''])[0]}{_place(error)}",
        remedy=_ADVICE.get(type(error).__name__, advice),
    )


def _in_words(message: str) -> str:
    """The first guards that torch.export names, sizes of inputs called by what they are."""
    text = " ".join(_lines(message)[1:3])
    sizes = dict(re.findall(r"values of (S\d*) = (\S+)", text))
    for name, size in sizes.items():
        text = text.replace(size, name)
    return text


def _lines(message: str) -> list[str]:
    return [line.strip() for line in message.splitlines() if line.strip()]


def _place(error: Exception) -> str:
    """The innermost line outside of torch and sp that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    frames = [frame for frame in frames if "/sp/passes/" not in frame.filename]
    return f"\n  at:     {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
