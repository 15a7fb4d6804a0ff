"""Masks: which key positions a query position may see.  Facts about positions, no tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sp.layout import Run

_WINDOW = re.compile(r"window\((-?\d+|), (-?\d+|)\)")


@dataclass(frozen=True)
class Band:
    """Position i sees position j when `i - left <= j <= i + right`; None leaves that side open.

    The names follow FlashAttention's `window_size=(left, right)`.
    """

    left: int | None = None
    right: int | None = None

    def visible(self, i: int, j: int) -> bool:
        return (self.left is None or i - self.left <= j) and (self.right is None or j <= i + self.right)

    @property
    def is_empty(self) -> bool:
        """Whether it shows nothing at all, as `j >= i + 4 and j <= i + 1` does."""
        return self.left is not None and self.right is not None and self.left + self.right < 0

    def pairs(self, queries: Run, keys: int) -> int:
        """How many pairs of these queries and of the key positions 0 … keys-1 are visible, in constant time.

        Query i sees the keys below i + right + 1 but for those below i - left."""
        if self.is_empty:
            return 0
        seen = keys * queries.length if self.right is None else _total_below(queries, self.right + 1, keys)
        return seen - (0 if self.left is None else _total_below(queries, -self.left, keys))

    def __and__(self, other: Band) -> Band:
        return Band(_smaller(self.left, other.left), _smaller(self.right, other.right))

    def __str__(self) -> str:
        """`full`, `causal` or `window(left, right)`: what printed programs show and `parse` reads."""
        if self.left is None and self.right in (None, 0):
            return "full" if self.right is None else "causal"
        return f"window({_side(self.left)}, {_side(self.right)})"

    @staticmethod
    def parse(text: str) -> Band:
        """The inverse of `str`."""
        named = {"full": FULL, "causal": CAUSAL}
        if text in named:
            return named[text]
        found = _WINDOW.fullmatch(text)
        assert found, f"not a mask: {text!r}"
        left, right = (int(side) if side else None for side in found.groups())
        return Band(left, right)


def _total_below(queries: Run, shift: int, keys: int) -> int:
    """Of each query i, how many of `keys` positions lie below i + shift; all together."""
    first, whole = queries.count_below(-shift), queries.count_below(keys - shift)
    ramp, lowest = whole - first, queries.start + first * queries.stride + shift
    return ramp * lowest + queries.stride * ramp * (ramp - 1) // 2 + (queries.length - whole) * keys


def _smaller(a: int | None, b: int | None) -> int | None:
    return min(a, b) if a is not None and b is not None else (b if a is None else a)


def _side(width: int | None) -> str:
    return "" if width is None else str(width)


FULL = Band()
CAUSAL = Band(None, 0)
