"""Sizes and tensor types as text: `f32[B, S, 32]`."""

from __future__ import annotations

from functools import cache

import torch

from sp.passes.fxtools import expression
from sp.passes.naming import SymbolNames
from sp.program import Program
from sp.show.words import dtype_name

MOST_TYPES = 4  # of several results, named one by one


class Naming:
    """Names for the size symbols of one program."""

    def __init__(self, program: Program) -> None:
        names = SymbolNames(program)
        self.text = names.text
        self.size = cache(names.size)

    def type(self, value: object) -> str:
        """`f32[B, S, 32]`, a size as it is, several results in parentheses or counted, nothing for what has no type."""
        if isinstance(value, torch.Tensor):
            return f"{dtype_name(value.dtype)}[{', '.join(self.size(expression(size)) for size in value.shape)}]"
        if isinstance(value, torch.SymInt):
            return self.size(expression(value))
        if isinstance(value, (tuple, list)):
            types = [self.type(part) for part in value]
            if len(types) > MOST_TYPES and len(set(types)) > 1:
                return f"{len(types)} values"
            return f"{len(types)} × {types[0]}" if len(types) > 1 and len(set(types)) == 1 else f"({', '.join(types)})"
        return ""
