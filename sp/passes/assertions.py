"""Assertions: what torch.export could not prove of all lengths, proven here or refused.

    sym_min = sym_min(4 + 4*S, 8 + 8*S);  eq = sym_min == 4 + 4*S
    _assert_scalar(eq, …)                                            →  (erased: 8 + 8*S is never less)

Beside a cache, and where it has stumbled over a minimum, torch.export is asked to write down what it cannot prove
instead of giving up: its solver knows nothing of minima.  Plain bounds it does not write into the graph, but into the
ranges of the sizes.  Programs run without such checks, and for every length of a range, so that each must hold for all
of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram

from sp.errors import UnsupportedModelError
from sp.passes.export import Lengths
from sp.passes.fxtools import exact_quotient, shape

_ASSERT, _SIZE = torch.ops.aten._assert_scalar.default, torch.ops.aten.sym_size.int


def settle_ranges(
    exported: ExportedProgram, symbols: list[sympy.Symbol], ranges: tuple[Lengths, ...], model: str
) -> tuple[Lengths, ...]:
    """The lengths of each sequence for which torch.export says that its graph holds; all batches, or it is refused."""
    found = dict(zip(symbols, ranges, strict=True))
    for size, bounds in exported.range_constraints.items():
        symbol = next((one for one in symbols if (size - one).is_Integer), None)
        longest = int(bounds.upper) if bounds.upper.is_Integer else None
        if symbol is not None:  # or the sequence and some new tokens
            found[symbol] = _within(found[symbol], int(bounds.lower), longest, int(size - symbol))
        elif longest is not None or bounds.lower > 2:
            raise _unproven(model, f"{bounds.lower} <= {size} <= {bounds.upper}, of another size than the sequence")
    return tuple(found[symbol] for symbol in symbols)


def _within(known: Lengths, shortest: int, longest: int | None, more: int) -> Lengths:
    tops = [top for top in (known.longest, None if longest is None else longest - more) if top is not None]
    return Lengths(max(known.shortest, shortest - more), min(tops, default=None))


def prove_assertions(module: fx.GraphModule, shortest: Mapping[sympy.Symbol, int], model: str) -> None:
    """Erase every assertion about sizes that holds for all of them; raises UnsupportedModelError for any other.

    shortest: of each sequence.  Every other size is a batch, from 2 on."""
    for node in module.graph.find_nodes(op="call_function", target=_ASSERT):
        claim = _claim(node.args[0])
        if not _holds(claim, shortest):
            raise _unproven(model, str(claim))
        module.graph.erase_node(node)
    for node in reversed(module.graph.nodes):
        if not node.users and (node.target is _SIZE or node.target in _FUNCTIONS):  # what changes a tensor stays
            module.graph.erase_node(node)
    module.recompile()


def _unproven(model: str, claim: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"one graph of {model} does not hold for sequences or caches of every length",
        needed=f"a forward that does the same for every length; not proven: {claim}",
        remedy="look for Python's `if` on the length of the sequence or of the cache",
    )


def _claim(value: object) -> Any:
    """What a node says of sizes.  Read from the ops: torch.export takes for true from then on what it asserts."""
    if not isinstance(value, fx.Node):
        return sympy.sympify(value)
    if value.target is _SIZE:
        return shape(cast(fx.Node, value.args[0]))[cast(int, value.args[1])]
    function = _FUNCTIONS.get(value.target)
    return sympy.Dummy(value.name) if function is None else function(*map(_claim, value.args))


def _floor_divided(a: Any, b: Any) -> Any:
    """Without rest where that is certain: `(S*B + B) // B` is S + 1."""
    whole = exact_quotient(sympy.sympify(a), sympy.sympify(b))
    return sympy.floor(a / b) if whole is None else whole


_FUNCTIONS: Mapping[object, Callable[..., Any]] = {
    operator.floordiv: _floor_divided,
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.pow: operator.pow,
    operator.neg: operator.neg,
    operator.mod: sympy.Mod,
    operator.eq: sympy.Eq,
    operator.ne: sympy.Ne,
    operator.le: sympy.Le,
    operator.lt: sympy.Lt,
    operator.ge: sympy.Ge,
    operator.gt: sympy.Gt,
    torch.sym_min: sympy.Min,
    torch.sym_max: sympy.Max,
    torch.sym_not: sympy.Not,
}


def _holds(claim: Any, shortest: Mapping[sympy.Symbol, int]) -> bool:
    """Whether it is true when every size is its least one, and some number, not negative, more."""
    if claim is sympy.true:
        return True
    sizes = {
        size: sympy.Symbol(f"more_{size}", integer=True, nonnegative=True) + shortest.get(size, 2)
        for size in cast("set[sympy.Symbol]", claim.free_symbols)
        if not isinstance(size, sympy.Dummy)  # which may be any number
    }
    return sympy.simplify(claim.xreplace(sizes)) is sympy.true
