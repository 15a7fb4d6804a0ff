"""The lines of a `sp.score.Score`, evaluated: names of values to tensors in the frame [batch, heads, queries, keys].

Each dim is whole or 1, so that the operators of the graph run as they are: dtypes are promoted as in the original,
numbers in tensors without dims and Python numbers included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sp.runtime.scores.op_table import find_op
from sp.score import LOOKUP, Argument, Dtype, Line, Name, Score


def evaluate(score: Score, known: Mapping[str, Tensor], wanted: Iterable[str]) -> dict[str, Tensor]:
    """All values that the `wanted` ones are computed from, themselves among them, by name.

    known: the tensors of `i`, `j`, `s` and of the leaves `l0`, `l1`, …, those of them that are needed."""
    values = dict(known)
    for line in lines_of(score, wanted):
        arguments = [resolve(value, values) for value in line.arguments]
        options = {key: resolve(value, values) for key, value in line.options}
        values[line.name] = call(line.op, arguments, options)
    return values


def lines_of(score: Score, wanted: Iterable[str]) -> Iterator[Line]:
    """The lines that compute the `wanted` values, in order."""
    reached = score.reach(tuple(wanted))
    return (line for line in score.lines if line.name in reached)


def resolve(value: Argument, values: Mapping[str, Any]) -> Any:
    """What an operator gets for an argument of a line: a tensor, a dtype, a word as rounding_mode='floor', a number."""
    if isinstance(value, Name):
        assert value.text in values, f"the value {value.text!r} of a score is not known here"
        return values[value.text]
    if isinstance(value, Dtype):
        dtype = getattr(torch, value.text, None)
        return dtype if isinstance(dtype, torch.dtype) else value.text
    return value


def call(op: str, arguments: list[Any], options: Mapping[str, Any]) -> Tensor:
    """One line."""
    if op == LOOKUP:
        return _lookup(*arguments, **options)
    found = find_op(op)
    assert found is not None, f"a score may not call {op}"
    return found(*arguments, **options)


def _lookup(table: Tensor, index: Tensor) -> Tensor:
    """table [rows, heads], index [·, 1, queries, keys] -> [·, heads, queries, keys]"""
    assert table.dim() == 2, f"a table is [rows, heads], not {tuple(table.shape)}"
    assert index.dim() == 4, f"an index lies in the frame, {tuple(index.shape)} does not"
    assert index.shape[1] == 1, f"all heads share an index, {tuple(index.shape)} has its own for each"
    return table.t()[:, index.squeeze(1)].transpose(0, 1)
