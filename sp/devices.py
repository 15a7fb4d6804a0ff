"""Devices in text: ranks of one host have a device each, and everything else alike."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"\b(cuda|xpu|hpu|mps|npu|mtia):\d+|(device\(type='\w+'), index=\d+")


def without_numbers(text: str) -> str:
    """`device: cuda:3` → `device: cuda`, for what all ranks must say alike."""
    return _NUMBERED.sub(lambda found: found[1] or found[2], text)
