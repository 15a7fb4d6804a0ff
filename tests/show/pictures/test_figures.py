"""The pictures as matplotlib figures."""

import sys
from collections.abc import Callable

import pytest

import sp
from sp.show import Report

Inspect = Callable[..., Report]


@pytest.mark.parametrize(("name", "rows"), [("plan", 2), ("tiles", 1), ("work", 1)])
def test_figures_have_a_column_for_each_strategy(inspect: Inspect, name: str, rows: int) -> None:
    pytest.importorskip("matplotlib")
    figure = inspect("llama", strategy="ring", world=4).figure(name)
    assert len(figure.axes) == 3 * rows
    assert [axes.get_title().split("\n")[0] for axes in figure.axes[:3]] == ["ring", "striped", "zigzag"]


def test_unknown_figures_are_refused(inspect: Inspect) -> None:
    with pytest.raises(sp.InputError, match=r"there is no figure 'pie'\n  needed: one of: plan, tiles, work"):
        inspect("llama").figure("pie")


def test_without_matplotlib(inspect: Inspect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(sp.InputError, match=r"matplotlib is not installed\n  remedy: pip install"):
        inspect("llama").figure()
