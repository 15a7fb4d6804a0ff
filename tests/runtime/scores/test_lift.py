"""Queries from which a mask of large numbers hides all keys are lifted, by their greatest bias; others are not."""

import torch
from torch import Tensor

from sp.mask import CAUSAL, Band
from sp.plan import make_plan
from sp.runtime.scores import BoundScore

MIN = torch.finfo(torch.float32).min
FULL = Band()


def lift(bias_11QK: Tensor, mask: Band = FULL, form: str = "qk", rest: str = "") -> list[float] | None:
    length = bias_11QK.shape[-1]
    plan = make_plan("contiguous", mask, length, 1, 0)
    found = BoundScore.bind(f"l0:{form} -> bias=l0{rest}", [bias_11QK], plan, torch.device("cpu")).lift
    return None if found is None else found.flatten().tolist()


def test_rows_that_see_nothing_are_lifted_by_their_greatest_bias() -> None:
    bias_QK = torch.tensor([[MIN, -1e9, MIN], [0.0, MIN, MIN], [-1e5, -1e6, -1e7]])
    assert lift(bias_QK[None, None]) == [-1e9, 0.0, -1e5]


def test_the_band_counts_as_hidden() -> None:
    """The first query sees no key but itself."""
    bias_QK = torch.tensor([[MIN, 0.0, 0.0], [MIN, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert lift(bias_QK[None, None], CAUSAL) == [float(MIN), 0.0, 0.0]


def test_nothing_is_lifted_where_all_see() -> None:
    assert lift(torch.zeros(1, 1, 1, 5), form="k") is None
    assert lift(torch.tensor([0.0, MIN, MIN, MIN])[None, None, None], form="k") is None


def test_hidden_for_good_is_not_lifted() -> None:
    assert lift(torch.full((1, 1, 1, 5), -torch.inf), form="k") is None


def test_tables_and_heads_beside_what_hides() -> None:
    """A table has rows, and they are no heads."""
    text = "l0:table l1: l2:k; a = lookup(l0, i); b = mul.Tensor(a, l1); c = add.Tensor(b, l2) -> bias=c"
    leaves = [torch.ones(5, 2), torch.ones(1, 2, 1, 1), torch.full((1, 1, 1, 5), MIN)]
    plan, device = make_plan("contiguous", FULL, 5, 1, 0), torch.device("cpu")
    found = BoundScore.bind(text, leaves, plan, device).lift
    assert found is not None
    torch.testing.assert_close(found, torch.full((1, 2, 5, 1), MIN, dtype=torch.float64))
    assert BoundScore.bind(text, [*leaves[:2], torch.zeros(1, 1, 1, 5)], plan, device).lift is None


def test_a_sink_is_seen_by_all() -> None:
    assert lift(torch.full((1, 1, 1, 5), MIN), form="k", rest=", sink=l0") is None
