"""Masks: which key positions a query position may see.  Facts about positions, no tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass

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


def _smaller(a: int | None, b: int | None) -> int | None:
    return min(a, b) if a is not None and b is not None else (b if a is None else a)


def _side(width: int | None) -> str:
    return "" if width is None else str(width)


FULL = Band()
CAUSAL = Band(None, 0)
