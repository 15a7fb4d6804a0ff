"""Gradients of a score: its lines in reverse, each operand by its rule in `derivatives.py`.

Gradients stay in the dtype in which they arrive or a wider one, they are not rounded to the dtype of their value: a
bias in 16 bits gets the exact sum over its queries and keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor

from sp.runtime.scores.derivatives import DERIVATIVES
from sp.runtime.scores.evaluate import lines_of, resolve
from sp.runtime.scores.op_table import base_of, names_of
from sp.score import LOOKUP, Line, Name, Score

Values = Mapping[str, Tensor]


def sweep(score: Score, values: Values, seeds: Values, sources: Collection[str]) -> dict[str, Tensor]:
    """The gradients of `sources`, those of them that are reached, each of its value's shape.

    values: what `evaluate` returned.  seeds: gradients of the results, in a shape that theirs broadcast to."""
    lines = [line for line in lines_of(score, seeds) if line.name in values]
    varying = _varying(lines, values, sources)
    grads = {name: _fitted(grad, values[name]) for name, grad in seeds.items() if name in varying}
    for line in reversed(lines):
        if line.name not in grads:
            continue
        grad = grads.pop(line.name) if line.name not in sources else grads[line.name]
        for name, part in _operands(line, grad, values, varying):
            grads[name] = grads[name] + part if name in grads else part
    return {name: grads[name] for name in sources if name in grads}


def _varying(lines: list[Line], values: Values, sources: Collection[str]) -> set[str]:
    """Floats that are computed from the sources."""
    varying = {name for name in sources if name in values}
    for line in lines:
        if values[line.name].is_floating_point() and varying.intersection(line.reads):
            varying.add(line.name)
    return varying


def _operands(line: Line, grad: Tensor, values: Values, varying: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Each varying operand of a line with its gradient; an operand that stands twice comes twice."""
    named = [*zip(names_of(line.op), line.arguments, strict=False), *line.options]
    arguments: dict[str, Any] = {key: resolve(value, values) for key, value in named}
    for key, argument in named:
        if not isinstance(argument, Name) or argument.text not in varying:
            continue
        rule = DERIVATIVES.get(base_of(line.op), {}).get(key)
        assert rule is not None, f"the operand {key!r} of {line.op} in a score has no gradient"
        part = rule(grad, values[line.name], arguments)
        yield argument.text, part if line.op == LOOKUP else _fitted(part, arguments[key])


def _fitted(grad: Tensor, value: Tensor) -> Tensor:
    """Broadcasting undone: the sum over the dims in which the value is 1."""
    return grad if grad.shape == value.shape else grad.sum_to_size(value.shape)
