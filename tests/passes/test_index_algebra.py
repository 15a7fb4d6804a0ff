"""The index algebra: what it says a value is, held against the value itself, element by element."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, fx

from sp.passes.index_algebra import IndexAlgebra, Opaque, coordinate, is_condition
from sp.passes.index_rules import INDEX_RULES
from tests.passes.masks import captured

Maker = Callable[[int], Tensor]


def a(S: int) -> Tensor:
    return torch.arange(S)


def grid(S: int) -> Tensor:
    return torch.arange(3)[:, None] * 100 + torch.arange(S)


FOLLOWED: dict[str, tuple[str, Maker]] = {
    "arange": ("c0", a),
    "arange start step": ("2*c0 + 5", lambda S: torch.arange(5, 5 + 2 * S, 2)),
    "arange down": ("S - c0 - 1", lambda S: torch.arange(S - 1, -1, -1)),
    "add alpha": ("c0 + 6", lambda S: torch.add(a(S), 3, alpha=2)),
    "sub alpha": ("c0 - 6", lambda S: torch.sub(a(S), 3, alpha=2)),
    "rsub alpha": ("3 - 2*c0", lambda S: torch.rsub(a(S), 3, alpha=2)),
    "sub tensor alpha": ("-c0", lambda S: torch.sub(a(S), a(S), alpha=2)),
    "neg": ("-c0", lambda S: -a(S)),
    "abs": ("Abs(c0 - 3)", lambda S: (a(S) - 3).abs()),
    "product": ("c0*c1", lambda S: a(S)[:, None] * a(S)),
    "sizes": ("c0 + S", lambda S: a(S) + S),
    "full": ("7", lambda S: torch.full((S, 2), 7)),
    "full of a size": ("S", lambda S: torch.full((2, 3), S)),
    "full_like": ("4", lambda S: torch.full_like(a(S), 4)),
    "new_full": ("4", lambda S: a(S).new_full((S, S), 4)),
    "full of True in float": ("1", lambda S: torch.full((S,), True, dtype=torch.float32)),
    "full of 1 in bool": ("True", lambda S: torch.full((S,), 1, dtype=torch.bool)),
    "ones": ("1", lambda S: torch.ones(S, 2)),
    "bool zeros": ("False", lambda S: torch.zeros(S, dtype=torch.bool)),
    "scalar": ("7", lambda S: torch.scalar_tensor(7) + torch.zeros(S)),
    "constant tensor": ("7", lambda S: torch.zeros(S) + 7),
    "unsqueeze": ("c1", lambda S: a(S).unsqueeze(0)),
    "unsqueeze last": ("c0", lambda S: a(S).unsqueeze(-1)),
    "squeeze": ("c0", lambda S: a(S).view(1, S, 1).squeeze()),
    "view": ("c1", lambda S: a(S).view(1, S, 1)),
    "expand": ("c1", lambda S: a(S).expand(4, S)),
    "expand of one": ("c0", lambda S: a(S)[:, None].expand(S, 5)),
    "grid": ("100*c0 + c1", grid),
    "transposed": ("c0 + 100*c1", lambda S: grid(S).t()),
    "permuted": ("c0 + 100*c2", lambda S: grid(S)[:, None].permute(2, 1, 0)),
    "transposed negative": ("c0 + 100*c1", lambda S: grid(S).transpose(-1, -2)),
    "slice": ("c0 + 2", lambda S: a(S)[2:]),
    "slice with an end": ("c0 + 1", lambda S: a(S)[1:-1]),
    "slice with a step": ("3*c0 + 1", lambda S: a(S)[1::3]),
    "slice of the first dim": ("100*c0 + c1 + 100", lambda S: grid(S)[1:]),
    "slice to one": ("100*c0 + 2", lambda S: grid(S)[:, 2:3]),
    "select": ("c0 + 200", lambda S: grid(S)[2]),
    "select from the back": ("c0 + 200", lambda S: grid(S)[-1]),
    "select last position": ("100*c0 + S - 1", lambda S: grid(S)[:, -1]),
    "select by size": ("100*c0 + S - 1", lambda S: grid(S).select(1, S - 1)),
    "gather": ("2*c0 + 1", lambda S: torch.arange(2 * S)[2 * a(S) + 1]),
    "gather of two": ("100*c0 + c1", lambda S: grid(S)[torch.arange(3)[:, None], a(S)]),
    "gather crossed": ("c0 + 100*c1", lambda S: grid(S)[torch.arange(3), a(S)[:, None]]),
    "diff": ("1", lambda S: torch.diff(a(S))),
    "diff of squares": ("2*c0 + 1", lambda S: torch.diff(a(S) * a(S))),
    "diff with prepend": ("1", lambda S: torch.diff(a(S), prepend=torch.full((1,), -1))),
    "diff along dim 0": ("100", lambda S: torch.diff(grid(S), dim=0)),
    "cumsum": ("2*c0 + 2", lambda S: torch.full((S,), 2).cumsum(0)),
    "cumsum of zeros": ("0", lambda S: torch.zeros(2, S, dtype=torch.long).cumsum(-1)),
    "cumsum along the other dim": ("c1*(c0 + 1)", lambda S: a(S).expand(3, S).cumsum(0)),
    "comparison": ("c0 >= c1", lambda S: a(S)[:, None] >= a(S)),
    "comparison with itself": ("True", lambda S: a(S) == a(S)),
    "comparison of a comparison": ("c0 < 3", lambda S: (a(S) < 3) == 1),
    "bool of a number": ("Ne(c0, 0)", lambda S: a(S).bool()),
    "number of a bool": ("Piecewise((1, c0 < 3), (0, True))", lambda S: (a(S) < 3).long()),
    "logic on numbers": ("(c0 < 3) & Ne(c0, 0)", lambda S: torch.logical_and(a(S), a(S) < 3)),
    "not": ("c0 >= 3", lambda S: ~(a(S) < 3)),
    "where": ("Piecewise((c0, c0 < 3), (3, True))", lambda S: torch.where(a(S) < 3, a(S), 3)),
    "masked_fill": ("Piecewise((3, c0 >= 3), (c0, True))", lambda S: a(S).masked_fill(a(S) >= 3, 3)),
    "arithmetic by cases": ("Piecewise((c0 + 1, c0 < 3), (c0, True))", lambda S: a(S) + (a(S) < 3)),
    "min of tril": ("Piecewise((1, c0 >= c1), (0, True))", lambda S: torch.ones(S, S).tril()),
    "triu of values": ("Piecewise((c1, c1 >= c0 + 1), (0, True))", lambda S: a(S).expand(S, S).triu(1)),
    "batched tril": ("Piecewise((1, c1 >= c2), (0, True))", lambda S: torch.ones(2, S, S).tril()),
    "to float": ("c0", lambda S: a(S).float()),
    "clone": ("c0", lambda S: a(S).clone().contiguous().detach()),
    "small constants in bf16": ("3", lambda S: torch.full((S,), 3, dtype=torch.bfloat16)),
}


def many_conditions(S: int) -> list[Tensor]:
    i, j = a(S)[:, None], a(S)
    return [condition.long() for condition in (i < 2, j < 3, i >= j, i + j < 7, i < 2 * j)]


OPAQUE: dict[str, tuple[str, Maker]] = {
    "negative slice": ("a slice that begins at -3", lambda S: a(S)[-3:]),
    "half": ("does not know aten.floor_divide", lambda S: a(S) // 2),
    "merge": ("merges or splits dims", lambda S: grid(S).view(-1)),
    "reshape": ("merges or splits dims", lambda S: grid(S).reshape(S, 3)),
    "index of one dim": ("leaves dims out", lambda S: grid(S)[torch.arange(2)]),
    "index with None": ("leaves dims out", lambda S: grid(S)[:, a(S)]),
    "maybe negative index": ("counts from the back", lambda S: a(S)[a(S) - 2]),
    "diff twice": ("higher order", lambda S: torch.diff(a(S), n=2)),
    "diff appended": ("values appended", lambda S: torch.diff(a(S), append=torch.zeros(1, dtype=torch.long))),
    "diff, another start": ("at the start", lambda S: torch.diff(a(S), prepend=torch.zeros(1, dtype=torch.long))),
    "diff, two prepended": ("at the start", lambda S: torch.diff(a(S), prepend=torch.full((2,), -1))),
    "diff by cases": ("diff of Piecewise", lambda S: torch.diff((a(S) < 3).long())),
    "cumsum of positions": ("the running sum of c0", lambda S: a(S).cumsum(0)),
    "float to int": ("rounds", lambda S: a(S).float().long()),
    "float step": ("no whole number", lambda S: torch.arange(0, 1, 0.5)),
    "bitwise on numbers": ("bitwise arithmetic", lambda S: a(S) & 3),
    "random": ("does not know aten.rand", lambda S: torch.rand(S, 2)),
    "uninitialised": ("does not know aten.empty", lambda S: torch.empty(S, 2)),
    "int8": ("in int8", lambda S: torch.arange(S, dtype=torch.int8)),
    "negative in uint8": ("in uint8", lambda S: torch.full((S,), 3, dtype=torch.uint8) - 5),
    "200 in int8": (
        "in int8",
        lambda S: torch.full((S,), 100, dtype=torch.int8) + torch.full((S,), 100, dtype=torch.int8),
    ),
    "301 in bf16": ("in bfloat16", lambda S: torch.full((S,), 301, dtype=torch.bfloat16)),
    "many cases": ("distinguishes 32 cases", lambda S: sum(2**n * case for n, case in enumerate(many_conditions(S)))),
}


@pytest.fixture(scope="module")
def nodes() -> dict[str, fx.Node]:
    makers = {name: maker for name, (_, maker) in FOLLOWED.items()}
    return captured({**makers, **{f"opaque {name}": maker for name, (_, maker) in OPAQUE.items()}})


@pytest.fixture(scope="module")
def algebra() -> IndexAlgebra:
    return IndexAlgebra(INDEX_RULES)


def as_printed(value: Any) -> str:
    """With S for the sequence."""
    others = [symbol for symbol in value.free_symbols if not str(symbol).startswith("c")]
    assert len(others) <= 1
    return str(value.xreplace({symbol: sympy.Symbol("S", integer=True, positive=True) for symbol in others}))


def element(value: Any, place: tuple[int, ...], length: int) -> Any:
    """The value at one place."""
    others = [symbol for symbol in value.free_symbols if not str(symbol).startswith("c")]
    known = {coordinate(dim): sympy.Integer(at) for dim, at in enumerate(place)}
    return value.xreplace({**known, **dict.fromkeys(others, sympy.Integer(length))})


def number(item: float) -> Any:
    return sympy.sympify(item) if isinstance(item, bool) else sympy.Integer(int(item))


@pytest.mark.parametrize("name", FOLLOWED)
def test_value_is_what_torch_computes(name: str, nodes: dict[str, fx.Node], algebra: IndexAlgebra) -> None:
    printed, maker = FOLLOWED[name]
    value = algebra.value(nodes[name])
    expected = sympy.sympify(
        printed, {f"c{n}": coordinate(n) for n in range(3)} | {"S": sympy.Symbol("S", integer=True, positive=True)}
    )
    assert as_printed(value) == str(expected) or sympy.simplify(sympy.sympify(as_printed(value)) - expected) == 0
    for length in (6, 9):
        real = maker(length)
        assert is_condition(value) == (real.dtype == torch.bool)
        places = list(itertools.product(*(range(size) for size in real.shape)))
        for place in random.Random(length).sample(places, min(len(places), 20)):
            assert element(value, place, length) == number(real[place].item()), f"{value} at {place}"


@pytest.mark.parametrize("name", OPAQUE)
def test_opaque(name: str, nodes: dict[str, fx.Node], algebra: IndexAlgebra) -> None:
    with pytest.raises(Opaque) as caught:
        algebra.value(nodes[f"opaque {name}"])
    assert OPAQUE[name][0] in caught.value.why
