"""Names for what capture leaves nameless: size symbols (s85 → S)."""

from __future__ import annotations

import re

import sympy

from sp.passes.fxtools import shape, tensor
from sp.program import Program


class SymbolNames:
    """S is the sequence (S2, S3 are further ones) and B the batch; torch's own numbers differ from model to model."""

    def __init__(self, program: Program) -> None:
        sequences = [sequence.symbol for sequence in program.sequences]
        inputs = [node for node in program.graph.find_nodes(op="placeholder") if tensor(node) is not None]
        sizes = [size for node in inputs for size in shape(node)]
        others = [symbol for size in sizes for symbol in sorted(size.free_symbols, key=str) if symbol not in sequences]
        self._names: dict[sympy.Basic, str] = {**_numbered("S", sequences), **_numbered("B", others)}
        known = "|".join(re.escape(str(symbol)) for symbol in self._names)
        self._pattern = re.compile(rf"\b({known})\b")
        self._texts = {str(symbol): name for symbol, name in self._names.items()}

    def text(self, text: str) -> str:
        """The same text with every size symbol named."""
        return self._pattern.sub(lambda match: self._texts[match[1]], text)

    def size(self, size: sympy.Expr) -> str:
        named = {symbol: sympy.Symbol(name, integer=True) for symbol, name in self._names.items()}
        return str(size.xreplace(named))


def _numbered(letter: str, symbols: list[sympy.Symbol] | list[sympy.Basic]) -> dict[sympy.Basic, str]:
    distinct = dict.fromkeys(symbols)
    return {symbol: letter if number == 1 else f"{letter}{number}" for number, symbol in enumerate(distinct, 1)}
