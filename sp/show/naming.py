"""Names for what capture leaves nameless: size symbols (s85 → S), sizes as text, tensor types."""

from __future__ import annotations

import re
from functools import cache

import sympy
import torch

from sp.passes.fxtools import expression, shape
from sp.program import Program
from sp.show.words import dtype_name


class Naming:
    """S is the sequence and B the batch; torch's own numbers differ from model to model."""

    def __init__(self, program: Program) -> None:
        found: list[sympy.Basic] = [program.sequence.symbol]
        for node in program.graph.find_nodes(op="placeholder"):
            sizes = shape(node) if isinstance(node.meta.get("val"), torch.Tensor) else ()
            found += [symbol for size in sizes for symbol in sorted(size.free_symbols, key=str)]
        names = ["S", "B", *(f"B{number}" for number in range(2, len(found)))]
        self._names = dict(zip(dict.fromkeys(found), names, strict=False))
        known = "|".join(re.escape(str(symbol)) for symbol in self._names)
        self._pattern = re.compile(rf"\b({known})\b")
        self._texts = {str(symbol): name for symbol, name in self._names.items()}
        self.size = cache(self._size)

    def text(self, text: str) -> str:
        """The same text with every size symbol named."""
        return self._pattern.sub(lambda match: self._texts[match[1]], text)

    def type(self, value: object) -> str:
        """`f32[B, S, 32]`, a size as it is, several results in parentheses, nothing for what has no type."""
        if isinstance(value, torch.Tensor):
            return f"{dtype_name(value.dtype)}[{', '.join(self.size(expression(size)) for size in value.shape)}]"
        if isinstance(value, torch.SymInt):
            return self.size(expression(value))
        if isinstance(value, (tuple, list)):
            types = [self.type(part) for part in value]
            return f"{len(types)} × {types[0]}" if len(types) > 1 and len(set(types)) == 1 else f"({', '.join(types)})"
        return ""

    def _size(self, size: sympy.Expr) -> str:
        named = {symbol: sympy.Symbol(name, integer=True) for symbol, name in self._names.items()}
        return str(size.xreplace(named))
