"""One interval for each block of queries and keys, and how an operator maps ends to ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import torch
from torch import Tensor

from sp.runtime.scores.evaluate import call

Arguments = Mapping[str, Any]  # of a call, by name: intervals, numbers, dtypes, words


@dataclass(frozen=True, eq=False)
class Interval:
    """Ends of the values of each block, in the dtype of the values; of truth values, what is sure and what is possible.

    Both ends are nan where nothing is known; the value may then be nan too."""

    low: Tensor
    high: Tensor

    def or_anything(self, unknown: Tensor) -> Interval:
        """The widest interval where `unknown` holds."""
        widest = anything(self.low)
        return Interval(torch.where(unknown, widest.low, self.low), torch.where(unknown, widest.high, self.high))

    def replaced(self, where: Tensor, number: int) -> Interval:
        """Exactly `number` where `where` holds, in the same dtype."""
        return Interval(*(end.masked_fill(where, number) for end in (self.low, self.high)))


def anything(like: Tensor) -> Interval:
    """The widest interval of the shape and dtype of a tensor."""
    if like.is_floating_point():
        unknown = torch.full_like(like, torch.nan)
        return Interval(unknown, unknown)
    if like.dtype == torch.bool:
        return Interval(torch.zeros_like(like), torch.ones_like(like))
    limits = torch.iinfo(like.dtype)
    return Interval(torch.full_like(like, limits.min), torch.full_like(like, limits.max))


def as_interval(value: Any) -> Interval:
    """Of an operand.  A number becomes a tensor, good for comparisons only."""
    if isinstance(value, Interval):
        return value
    number = torch.tensor(value)
    return Interval(number, number)


def sample(op: str, arguments: Arguments) -> Tensor:
    """A tensor of the shape and dtype of the result.  Computed from ones, at which no operator fails."""
    ones = {key: torch.ones_like(x.low) if isinstance(x, Interval) else x for key, x in arguments.items()}
    return call(op, [], ones)


def monotone(op: str, arguments: Arguments) -> Interval:
    """Of an operator that rises or falls in each operand as long as the others stay: ends come from ends.

    Where one of these is nan, both are: `minimum` and `maximum` pass it on."""
    corners = list(_corners(op, arguments))
    return Interval(reduce(torch.minimum, corners), reduce(torch.maximum, corners))


def _corners(op: str, arguments: Arguments) -> Iterator[Tensor]:
    for ends in product(*(_ends(value) for value in arguments.values())):
        yield call(op, [], dict(zip(arguments, ends, strict=True)))


def _ends(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Interval):
        return (value.low,) if value.low is value.high else (value.low, value.high)
    return (value,)
