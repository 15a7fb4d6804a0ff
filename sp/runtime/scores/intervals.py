"""Bounds of a score's values over blocks of queries and keys: interval arithmetic on its lines.

    l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a       l0 in [3, 4], l1 in [0, 2]  →  a in [false, false]: hidden

An interval is a pair of tensors in the frame, with one entry for each block of rows and of columns.  Ends are computed
by the operators of the lines themselves, in their dtypes: rounding is monotone, so what bounds the exact result bounds
the rounded one.  Every value of a block lies in its interval, which may be wider:

* the interval from nan to nan says nothing, and that the value may be nan: no comparison with it is sure;
* integers that might overflow, and what no rule knows, are bounded by their dtype alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sp.runtime.scores.evaluate import lines_of, resolve
from sp.runtime.scores.interval import Interval, anything, sample
from sp.runtime.scores.interval_rules import RULES
from sp.runtime.scores.op_table import base_of, names_of
from sp.score import Line, Score


def bound_values(score: Score, known: Mapping[str, Interval], wanted: Iterable[str]) -> dict[str, Interval]:
    """As `evaluate`, with an interval for each value.  A table's is that of each of its columns, [heads]."""
    values = dict(known)
    for line in lines_of(score, wanted):
        values[line.name] = _bound(line, values)
    return values


def _bound(line: Line, values: Mapping[str, Interval]) -> Interval:
    named = [*zip(names_of(line.op), line.arguments, strict=False), *line.options]
    arguments: dict[str, Any] = {key: resolve(value, values) for key, value in named}
    rule = RULES.get(base_of(line.op))
    found = rule(line.op, arguments) if rule is not None else None
    return anything(sample(line.op, arguments)) if found is None else found
