"""One op of fuzzed programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz.kinds import Signature


@dataclass(frozen=True)
class Op:
    """run(parts, *operands).  weight: how often it is drawn, beside others."""

    signature: Signature
    run: Callable[..., Any]
    weight: int


def op(signature: str, run: Callable[..., Any], weight: int = 4) -> Op:
    return Op(Signature.of(signature), run, 3 * weight)


def rare(signature: str, run: Callable[..., Any]) -> Op:
    """What sp refuses, or does only in places."""
    return Op(Signature.of(signature), run, 1)
