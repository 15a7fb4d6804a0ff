"""`moved_by_reshape` alone: for every reshape of a tensor, what it says holds, and what it refuses mixes tokens."""

import itertools
from collections.abc import Iterator

import pytest
import sympy
import torch

from sp.passes.shape_rules import moved_by_reshape
from sp.program import Sharded
from sp.testing.cutting import Spread

B, S = sympy.symbols("B S", integer=True, positive=True)
# B coincides with a static size, and with the static size next to the sequence.
VALUES = ({B: 2, S: 7}, {B: 3, S: 7}, {B: 7, S: 7})
WORLD = 3

Shape = tuple[sympy.Expr, ...]


def reshapes(factors: tuple[object, ...]) -> Iterator[Shape]:
    """Every shape that these factors make in any order, neighbours merged in every way, with a dim of size 1."""
    for order in set(itertools.permutations(factors)):
        for cuts in itertools.product([False, True], repeat=len(order) - 1):
            dims = [sympy.sympify(order[0])]
            for factor, merge in zip(order[1:], cuts, strict=True):
                dims[-1:] = [dims[-1] * factor] if merge else [dims[-1], sympy.sympify(factor)]
            yield tuple(dims)
            yield (sympy.Integer(1), *dims)


def numbers(shape: Shape, values: dict[sympy.Symbol, int]) -> list[int]:
    return [int(size.subs(values)) for size in shape]


def holds(old: Shape, new: Shape, before: Sharded, after: Sharded, values: dict[sympy.Symbol, int]) -> bool:
    """Whether each rank's part, reshaped, is its part of the reshaped whole."""
    spread = Spread("zigzag", WORLD, values)
    whole = torch.arange(int(torch.Size(numbers(old, values)).numel())).reshape(numbers(old, values))
    moved = whole.reshape(numbers(new, values))
    sizes = numbers(new, values)
    sizes[after.dim] = -1
    return all(
        torch.equal(spread.cut(whole, before, rank).reshape(sizes), spread.cut(moved, after, rank))
        for rank in range(WORLD)
    )


def possible(old: Shape, new: Shape, before: Sharded, values: dict[sympy.Symbol, int]) -> bool:
    """Whether any placement would hold."""
    outers = [sympy.Integer(1), B, sympy.Integer(2), 2 * B, sympy.Integer(4), 4 * B]
    candidates = [Sharded(dim, outer, before.start, S, S) for dim in range(len(new)) for outer in outers]
    fitting = [one for one in candidates if numbers(new, values)[one.dim] % int((one.outer * S).subs(values)) == 0]
    return any(holds(old, new, before, one, values) for one in fitting)


OLD = [
    ((B, S, sympy.Integer(4)), Sharded.whole(1, S)),
    ((S, B, sympy.Integer(4)), Sharded.whole(0, S)),
    ((B, sympy.Integer(4), S), Sharded.whole(2, S)),
    ((B * S, sympy.Integer(4)), Sharded(0, B, sympy.Integer(0), S, S)),
    ((S * B, sympy.Integer(4)), Sharded(0, sympy.Integer(1), sympy.Integer(0), S, S)),
]


@pytest.mark.parametrize(("old", "before"), OLD)
def test_every_reshape(old: Shape, before: Sharded) -> None:
    accepted = refused = 0
    for new in sorted(set(reshapes((B, S, 2, 2))), key=str):
        after = moved_by_reshape(before, old, new)
        if after is None:
            refused += 1
            # Sizes that coincide may make one reshape right by chance; for all sizes together none is.
            assert not all(possible(old, new, before, values) for values in VALUES), f"{old} to {new} was refused"
        else:
            accepted += 1
            assert all(holds(old, new, before, after, values) for values in VALUES), f"{old} to {new} is not {after}"
    assert accepted >= 8
    assert refused >= 8


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((B, S, 4), (S, B, 4)),  # mixes tokens, though the sizes fit
        ((2, S, 4), (S, 2, 4)),
        ((2, S, 2), (S, 2, 2)),
        ((B, S, 4), (B, 4, S)),
        ((B, S, 4), (B * 4, S)),
        ((B, S, 4), (4 * S, B)),
        ((B, S, 4), (B, 2, S * 2)),
    ],
)
def test_what_mixes_tokens_is_refused(old: Shape, new: Shape) -> None:
    as_shape = [tuple(map(sympy.sympify, shape)) for shape in (old, new)]
    assert moved_by_reshape(Sharded.whole(1, S), *as_shape) is None
