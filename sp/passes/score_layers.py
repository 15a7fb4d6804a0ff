"""Layers: the outermost thing that was done to scores, taken off one by one.

where(c, x, -inf)          hides for good where c is false; the rest is x
masked_fill(x, m, -1e38)   hides softly where m is true: a row that sees nothing sees the mean of all
add(x, b)                  adds b
and(a, not(or(b, c)))      a, not b, not c
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from sp.passes.frames import Frame, operand_frame, source_frame
from sp.passes.fxtools import op_name, positional, tensor
from sp.passes.score_sources import filled

# Added to a score, a number below this leaves nothing of it, so that filling in and adding are one.
ABSORBS = -1e30


@dataclass(frozen=True)
class Part:
    """A value that is true where a score is seen, or (negated) false."""

    node: fx.Node
    frame: Frame
    negated: bool = False


@dataclass(frozen=True)
class Layer:
    """`node` hides scores by `amount` where it is false (negated: true); amount None: it is added to them.
    inner: the scores before."""

    node: fx.Node
    frame: Frame
    negated: bool = False
    amount: float | None = None
    inner: fx.Node | None = None

    @property
    def part(self) -> Part:
        return Part(self.node, self.frame, self.negated)

    @property
    def hides(self) -> bool:
        return self.amount == -math.inf

    @property
    def rounds(self) -> bool:
        """Whether it is added to scores in float16, beside whose largest numbers scores are lost only in part."""
        if self.inner is None or self.amount is not None:
            return False
        return torch.result_type(self.inner.meta["val"], self.node.meta["val"]) == torch.float16

    @property
    def softly(self) -> bool:
        return self.amount is not None and not self.hides


def layer_of(node: fx.Node, frame: Frame, scored: Set[fx.Node]) -> Layer | None:
    """The outermost layer of `node`; None if it is something else.  scored: what is computed from scores."""
    name = op_name(node).removeprefix("aten.")
    if name == "add" and not node.kwargs and len(node.args) == 2:
        inner, bias = node.args if node.args[0] in scored else node.args[::-1]
        if inner in scored and bias not in scored and tensor(bias) is not None:
            bias = cast(fx.Node, bias)
            return Layer(bias, operand_frame(bias, frame), inner=cast(fx.Node, inner))
    if name == "masked_fill":
        inner, condition, amount, *_ = positional(node)
        return _filling(inner, condition, amount, True, frame, scored)
    if name == "where" and len(node.args) == 3:
        condition, yes, no = node.args
        turned = no in scored
        return _filling(no if turned else yes, condition, yes if turned else no, turned, frame, scored)
    return None


def _filling(
    inner: object, condition: object, amount: object, negated: bool, frame: Frame, scored: Set[fx.Node]
) -> Layer | None:
    number = _number(amount)
    if inner not in scored or condition in scored or number is None or number > ABSORBS:
        return None
    condition = cast(fx.Node, condition)
    return Layer(condition, operand_frame(condition, frame), negated, number, cast(fx.Node, inner))


def terms(node: fx.Node, frame: Frame) -> Iterator[Layer]:
    """What is added up in an additive mask."""
    node, frame = through(node, frame)
    if op_name(node) == "aten.add" and not node.kwargs and all(tensor(operand) is not None for operand in node.args):
        for operand in cast("tuple[fx.Node, fx.Node]", node.args):
            yield from terms(operand, operand_frame(operand, frame))
    else:
        yield Layer(node, frame)


def _number(amount: object) -> float | None:
    """A number, or what a tensor is filled with."""
    if isinstance(amount, fx.Node) and amount.op == "call_function":
        amount, _ = through(amount, (None,) * amount.meta["val"].dim())
        amount = filled(amount) if op_name(amount) != "aten.scalar_tensor" else amount.args[0]
    return float(amount) if isinstance(amount, (int, float)) else None


def through(node: fx.Node, frame: Frame, last: fx.Node | None = None) -> tuple[fx.Node, Frame]:
    """The value behind views, copies and casts among floats, but none behind `last`."""
    while node is not last and node.op == "call_function" and node.args:
        name, source = op_name(node).removeprefix("aten."), node.args[0]
        shown = frame if name in _COPIES or _is_idle_cast(node, name) else source_frame(node, frame)
        if shown is None or not isinstance(source, fx.Node):
            break
        node, frame = source, shown
    return node, frame


_COPIES = frozenset({"clone", "contiguous", "alias"})


def _is_idle_cast(node: fx.Node, name: str) -> bool:
    """A narrower dtype makes -inf of what a wider one holds, and a row that sees nothing shows the difference."""
    source, made = tensor(node.args[0]), node.meta["val"]
    if name not in ("to", "_to_copy") or source is None:
        return False
    floats = source.is_floating_point() and made.is_floating_point()
    return floats and torch.finfo(source.dtype).max <= torch.finfo(made.dtype).max


def is_plain(node: fx.Node | None, score: fx.Node | None) -> bool:
    """Whether nothing has been done to these scores yet."""
    return node is not None and through(node, tuple(range(node.meta["val"].dim())), score)[0] is score


def conjuncts(part: Part) -> Iterator[Part]:
    """Conditions that are true together exactly where `part` is."""
    node, frame, negated = part.node, part.frame, part.negated
    name = op_name(node).removeprefix("aten.") if node.op == "call_function" else ""
    shown = frame if name in _COPIES else source_frame(node, frame)
    if shown is not None:
        yield from conjuncts(Part(cast(fx.Node, node.args[0]), shown, negated))
    elif _is_bool(node) and name in _NOT:
        yield from conjuncts(Part(cast(fx.Node, node.args[0]), frame, not negated))
    elif _is_bool(node) and name in (_OR if negated else _AND) and all(map(_is_bool, node.args)):
        for operand in cast("tuple[fx.Node, fx.Node]", node.args):
            yield from conjuncts(Part(operand, operand_frame(operand, frame), negated))
    else:
        yield part


_NOT = frozenset({"logical_not", "bitwise_not"})
_AND = frozenset({"logical_and", "bitwise_and", "__and__", "mul"})
_OR = frozenset({"logical_or", "bitwise_or", "__or__"})


def _is_bool(node: object) -> bool:
    value = tensor(node)
    return value is not None and value.dtype == torch.bool
