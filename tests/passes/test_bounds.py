"""A slice from `max(0, N - S)` is one from N - S, where no longer sequence is accepted."""

import pytest
import sympy
import torch
from torch import Tensor
from torch.utils._sympy.functions import Max

from sp.passes import preparation
from sp.passes.bounds import settle
from sp.testing.trial import run_whole
from tests.passes.programs import IDS_BS, Small, listing, program_of


def table_end(m: Small, ids: Tensor) -> Tensor:
    """As MPT cuts its bias: the end of a table [1, 32]."""
    table = torch.arange(-31, 1)[None]
    return m.e(ids)[..., 0] + table[max(0, 1 - ids.shape[1]) :, max(0, 32 - ids.shape[1]) :]


def test_end_of_a_table() -> None:
    model = Small(table_end)
    program = program_of(model, IDS_BS, passes=preparation())
    assert "max" not in listing(program)
    assert program.sequence.longest == 32
    ids = torch.randint(0, 11, (2, 7))
    *_, (out,) = run_whole(program.graph_module, [ids]).values()
    torch.testing.assert_close(out, model(ids))


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (lambda s: 1 - s, lambda s: 0),  # no sequence is shorter than 2
        (lambda s: s - 2, lambda s: s - 2),
        (lambda s: 32 - s, lambda s: 32 - s),
        (lambda s: 31 - s, lambda s: Max(0, 31 - s)),  # of 32 tokens it is another
        (lambda s: s * s, lambda s: Max(0, s * s)),
    ],
)
def test_settle(rest: object, expected: object) -> None:
    program = program_of(Small(table_end), IDS_BS)
    symbol = program.sequence.symbol
    assert callable(rest)
    assert callable(expected)
    assert settle(Max(0, rest(symbol)), program) == expected(symbol)


def test_of_something_else_nothing_is_known() -> None:
    program, other = program_of(Small(table_end), IDS_BS), sympy.Symbol("other", integer=True)
    assert settle(Max(0, other), program) == Max(0, other)
