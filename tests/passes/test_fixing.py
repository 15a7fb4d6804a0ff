"""Fixing: the line that makes a constant of the length."""

import linecache

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.passes.fixing import fixing_line
from tests.passes.programs import Small, program_of


def of_a_loop(m: Small, ids: Tensor) -> Tensor:
    x = m.l(m.e(ids))
    return sum(token for token in x.unbind(1))  # here


def of_a_layer(m: Small, ids: Tensor) -> Tensor:
    x = m.e(ids).transpose(1, 2)
    return nn.functional.linear(x, m.p[:9, :1].T)  # here


@pytest.mark.parametrize("forward", [of_a_loop, of_a_layer])
def test_the_error_names_the_line(forward):
    with pytest.raises(sp.UnsupportedModelError, match="fixes its sequence length at 9") as caught:
        program_of(forward, torch.zeros(2, 9, dtype=torch.long))
    place = next(line for line in str(caught.value).splitlines() if line.startswith("  at:"))
    file, _, rest = place.removeprefix("  at:").strip().partition(":")
    assert linecache.getline(file, int(rest.split(" ")[0])).rstrip().endswith("# here")


def test_nothing_is_fixed():
    assert fixing_line(lambda: torch.ones(3) + 1, 3) is None


def test_a_trace_that_fails():
    assert fixing_line(lambda: torch.ones(3) + torch.ones(4), 3) is None
