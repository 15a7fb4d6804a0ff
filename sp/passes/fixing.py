"""Fixing: which line of a model makes a constant of its sequence length.

torch.export says that the length was specialised, and not where.  So the trace is run once more under a watch that
looks after every torch function whether the length has become a number; the first time, the caller's line is it.

    for token in x.unbind(1):      →  model.py:12 in forward
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from sp.passes.witness import caller


def fixing_line(trace: Callable[[], object], length: int) -> str | None:
    """`file:line in function` where `trace()` turns a size of `length` into a constant; None if it cannot be told.

    A Python loop over `range(x.shape[1])` is seen at the first torch function after it."""
    watch = _Watch(length)
    with contextlib.suppress(Exception), watch:  # that it fails is why we are here
        trace()
    return watch.line


class _Watch(TorchFunctionMode):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.line: str | None = None

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        try:
            return func(*args, **(kwargs or {}))
        finally:
            if self.line is None and self._fixed((*args, *(kwargs or {}).values())):
                self.line = caller()

    def _fixed(self, arguments: Sequence[Any]) -> bool:
        """Whether the sizes behind some fake tensor among the arguments now hold a constant of that value."""
        for argument in arguments:
            mode = getattr(argument, "fake_mode", None) if isinstance(argument, Tensor) else None
            shapes = getattr(mode, "shape_env", None)
            if shapes is not None:
                return any(value == self.length for value in shapes.replacements.values())
        return False
