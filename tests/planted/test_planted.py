"""Every planted model is exact or refused by name, on three ranks; no third outcome."""

import pytest
import torch

import sp
from tests.planted.attentions import ATTENTIONS
from tests.planted.losses import LOSSES
from tests.planted.mixing import MIXING
from tests.planted.planted import Planted, judge
from tests.planted.scans import SCANS
from tests.planted.shapes import SHAPES
from tests.planted.states import STATES

PLANTED = (*SCANS, *MIXING, *SHAPES, *ATTENTIONS, *LOSSES, *STATES)


def cases(planted):
    return [pytest.param(each, id=each.name, marks=[pytest.mark.slow] * each.slow) for each in planted]


@pytest.mark.parametrize("planted", cases(PLANTED))
def test_exact_or_refused_by_name(planted: Planted) -> None:
    assert judge(planted) in ("exact", "refused")


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "world"), [("ring", 2), ("zigzag", 4), ("striped", 5)])
@pytest.mark.parametrize("planted", cases(PLANTED))
def test_exact_or_refused_on_other_worlds(planted: Planted, strategy: str, world: int) -> None:
    assert judge(planted, world=world, strategy=strategy) in ("exact", "refused")


def test_names_are_unique() -> None:
    names = [planted.name for planted in PLANTED]
    assert len(set(names)) == len(names) >= 60


def flag_of_tracing(m, x, ids, labels):
    return m.q(x) if torch.compiler.is_exporting() else m.k(x)


def test_only_running_it_shows_a_model_that_asks_whether_it_is_traced() -> None:
    """No trace can refuse it: that is what `sp.check` and `validate=True` are for."""
    planted = Planted(flag_of_tracing, "")
    report = sp.check(planted.model(), planted.inputs(), world_size=2)
    assert "output" in {row.what for row in report.rows if not row.exact}


def unmarked(m, x, ids, labels):
    return x.flip(1)


def test_a_refusal_that_blames_somebody_else_is_seen() -> None:
    with pytest.raises(pytest.fail.Exception, match="does not name 'roll'"):
        judge(Planted(unmarked, "roll"))
    with pytest.raises(pytest.fail.Exception, match="lines that are not marked"):
        judge(Planted(unmarked, r"aten\.flip"))


def test_a_wrong_answer_is_seen() -> None:
    with pytest.raises(pytest.fail.Exception, match="neither exact nor refused"):
        judge(Planted(flag_of_tracing, ""))
