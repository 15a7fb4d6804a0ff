"""The trial can fail: what is wrong or breaks is never called exact or refused."""

from itertools import count

import torch
from torch import nn

from tests.zoo.family import WIDTH, Family, states
from tests.zoo.table import Cell, parse, render
from tests.zoo.trial import InDoubles, call, try_family, variants


def forgetful():
    """Another function at its first two calls than later: the captured graph is the wrong one.

    What it counts with lies outside of the module, where capture does not look."""
    calls = count()

    class Forgetful(nn.Linear):
        def forward(self, input):  # noqa: A002
            return super().forward(input) * (1 if next(calls) < 2 else 2)

    return Forgetful(WIDTH, WIDTH)


class Breaking(nn.Linear):
    """Cannot be copied, as a rank does first."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def __deepcopy__(self, memo):
        raise RuntimeError("I am unique")


class Mixing(nn.Linear):
    """Reshapes tokens into one another."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def forward(self, input):  # noqa: A002
        return super().forward(input).view(input.shape[1], input.shape[0], WIDTH)


def outcome_of(build):
    return try_family(Family("a family", build, states("input"), mask=False), "plain")


def test_exact():
    outcome = outcome_of(lambda: nn.Linear(WIDTH, WIDTH))
    assert outcome.verdict == "exact"
    assert 0 < outcome.error < 1e-14


def test_wrong():
    outcome = outcome_of(forgetful)
    assert outcome.verdict == "wrong"
    assert "outputs 1.0e+00, gradient of" in outcome.text


def test_crash():
    outcome = outcome_of(Breaking)
    assert outcome.verdict == "crash"
    assert "I am unique" in outcome.text


def test_refused():
    outcome = outcome_of(Mixing)
    assert outcome.verdict == "refused"
    assert [reason.partition(":")[0] for reason in outcome.reasons] == ["`aten.view`"]


def test_in_doubles():
    x = torch.ones(2, dtype=torch.float64)
    with InDoubles():
        made = (x.float(), x.to(torch.float32), x.to(dtype=torch.float32), x.softmax(0, dtype=torch.float32), x.long())
    assert [y.dtype for y in made] == [*[torch.float64] * 4, torch.int64]


def test_variants():
    family = Family("a family", nn.Identity, states("input"))
    assert variants(family) == ("plain", "right", "left")
    assert call(family, "right", 9)["attention_mask"].sum().item() == 15


def test_table_reads_what_it_writes():
    cells = {
        ("one", "plain"): Cell("1e-15"),
        ("one", "labels"): Cell(reasons=("`aten.view`: no", "`aten.cat`: no, neither")),
        ("two (window)", "left"): Cell(reasons=("`aten.cat`: no, neither",)),
    }
    assert parse(render(cells)) == cells
