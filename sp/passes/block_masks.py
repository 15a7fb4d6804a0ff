"""Block masks of flex_attention, while a model is traced: `create_block_mask` looks at one position instead of S × S.

Which blocks of 128 × 128 a kernel may skip follows from the mask function, and sp asks that itself.  Traced in full,
the blocks would cost a sequence × sequence value, and torch.export would take multiples of 128 for lengths only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_MODULE = "torch.nn.attention.flex_attention"


class OneBlock(TorchFunctionMode):
    """Positions that `create_block_mask` makes for its mask function: only the first."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        if func is torch.arange and _makes_blocks(sys._getframe(1)):
            args = (0, 1)
        return func(*args, **(kwargs or {}))


def _makes_blocks(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name == "__torch_function__":  # of another mode, entered later
        frame = frame.f_back
    for name in ("create_mask", "create_block_mask"):
        if frame is None or (frame.f_globals.get("__name__"), frame.f_code.co_name) != (_MODULE, name):
            return False
        frame = frame.f_back
    return True
