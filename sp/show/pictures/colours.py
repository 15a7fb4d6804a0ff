"""Colours that people who see few of them can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

# Of the strategies, the same in every picture (Okabe and Ito, "Color Universal Design", 2008).
STRATEGIES = {
    "ring": "#d55e00",
    "striped": "#0072b2",
    "zigzag": "#009e73",
    "allgather": "#cc79a7",
    "ulysses": "#e69f00",
}

# Viridis without its darkest part, which a dark page would swallow: lightness rises evenly, hue from blue to yellow.
_RAMP = ("#3b528b", "#21918c", "#5ec962", "#fde725")
_GREYS = ("#dfe5ec", "#57606a")


def ramp(count: int) -> list[str]:
    """`count` colours in order, for steps: the first one is dark, the last one light."""
    return _between(_RAMP, count)


def greys(count: int) -> list[str]:
    """`count` shades without a hue, for ranks: the first one is light, the last one dark."""
    return _between(_GREYS, count)


def _between(stops: Sequence[str], count: int) -> list[str]:
    return [_at(stops, index / max(count - 1, 1)) for index in range(count)]


def _at(stops: Sequence[str], place: float) -> str:
    pairs = list(pairwise(map(_channels, stops)))
    index = min(int(place * len(pairs)), len(pairs) - 1)
    part = place * len(pairs) - index
    low, high = pairs[index]
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(low, high, strict=True))


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def is_dark(colour: str) -> bool:
    """Whether white is easier to read on it than black: by the relative luminance of WCAG 2."""
    red, green, blue = (_linear(channel / 255) for channel in _channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.18


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
