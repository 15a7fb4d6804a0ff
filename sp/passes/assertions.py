"""Assertions: what torch.export could not prove of all lengths, proven here or refused.

    sym_min = sym_min(4 + 4*S, 8 + 8*S);  eq = sym_min == 4 + 4*S
    _assert_scalar(eq, …)                                            →  (erased: 8 + 8*S is never less)

Beside a cache, torch.export is asked to write down what it cannot prove instead of giving up: its solver knows nothing of
minima.  Programs run without such checks, and for every length, so that each must hold for every length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import sympy
import torch
from torch import fx, nn
from torch.utils._sympy.functions import Max, Min

from sp.errors import UnsupportedModelError

_ASSERT = torch.ops.aten._assert_scalar.default


def prove_assertions(module: fx.GraphModule, shortest: Mapping[sympy.Symbol, int], model: nn.Module) -> None:
    """Erase every assertion about sizes that holds for all of them; raises UnsupportedModelError for any other.

    shortest: of each sequence.  Every other size is a batch, from 2 on."""
    for node in module.graph.find_nodes(op="call_function", target=_ASSERT):
        claim = _claim(node.args[0])
        if not _holds(claim, shortest):
            raise UnsupportedModelError(
                f"one graph of {type(model).__name__} does not hold for caches of every length",
                needed=f"a forward that does the same for every length; not proven: {claim}",
                remedy="look for Python's `if` on the length of the cache",
            )
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _claim(condition: object) -> Any:
    value = condition.meta["val"] if isinstance(condition, fx.Node) else condition
    return value.node.expr if isinstance(value, torch.SymBool) else sympy.sympify(value)


def _holds(claim: Any, shortest: Mapping[sympy.Symbol, int]) -> bool:
    """Whether it is true when every size is its least one, and some number, not negative, more."""
    if claim is sympy.true:
        return True
    sizes = {
        size: sympy.Symbol(f"more_{size}", integer=True, nonnegative=True) + shortest.get(size, 2)
        for size in cast("set[sympy.Symbol]", claim.free_symbols)
    }
    plain = claim.replace(Min, sympy.Min).replace(Max, sympy.Max).xreplace(sizes)
    return sympy.simplify(plain) is sympy.true
