"""Single pictures: tiles are those of the plans, bars those of the costs."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import sp
from sp.mask import CAUSAL
from sp.models import Llama, LlamaConfig
from sp.plan import make_plan
from sp.show import Report
from sp.show.pictures.colours import is_dark, ramp
from sp.show.pictures.panels import BESIDE, compare
from sp.show.pictures.tiling import Setting, chosen_ranks, make_tiling
from sp.strategy import STRATEGIES

Inspect = Callable[..., Report]
SVG = "{http://www.w3.org/2000/svg}"


def panels(svg: str) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(svg)
    return {each.attrib["data-strategy"]: each for each in root.iter(f"{SVG}g") if each.get("class") == "panel"}


def blocks(panel: ElementTree.Element) -> list[ElementTree.Element]:
    return [each for each in panel.iter(f"{SVG}g") if each.get("class") == "block"]


def test_tiles_are_those_of_the_plans(inspect: Inspect) -> None:
    world, length = 4, 37
    found = panels(inspect("llama", strategy="ring", world=world, length=length).to_svg("tiles"))
    assert list(found) == list(BESIDE)
    for name, panel in found.items():
        plans = [make_plan(STRATEGIES[name].layout, CAUSAL, length, world, rank) for rank in range(world)]
        for plan in plans:
            mine = [block for block in blocks(panel) if block.attrib["data-rank"] == str(plan.rank)]
            assert sum(int(block.attrib["data-pairs"]) for block in mine) == plan.area
            drawn = sum(len(block.findall(f"{SVG}polygon")) for block in mine)
            assert drawn == sum(len(step.tiles) for step in plan.steps)


def test_the_picture_of_the_readme_is_what_the_report_draws(golden_page: Callable[[str, str], None]) -> None:
    ids = torch.zeros(1, 4096, dtype=torch.long)
    report = sp.inspect(Llama(LlamaConfig(layers=2)), (ids,), {"labels": ids}, strategy="striped", world_size=4)
    svg = report.to_svg("plan")
    assert len(svg) < 60_000
    golden_page("docs/pictures/striped.svg", svg)


def test_ring_waits_and_striped_does_not(inspect: Inspect) -> None:
    (comparison,) = compare(inspect("llama", "ring", 4, 4096)._attentions, STRATEGIES["ring"], 4)
    length = {panel.name: panel.timeline.length for panel in comparison.panels}
    assert length["ring"] == pytest.approx(7 / 4, rel=1e-3)
    assert length["striped"] == pytest.approx(1, rel=1e-3)
    assert comparison.own.timeline.waiting == pytest.approx(3 / 7, rel=1e-3)
    assert comparison.advice == "striped would do it in 1.00 instead of 1.75 even shares."


def test_bars_are_as_long_as_the_work(inspect: Inspect) -> None:
    report = inspect("llama", strategy="ring", world=4)
    (area,) = (each["area"] for each in report.as_dict()["attentions"])
    bars = panels(report.to_svg("work"))["ring"].findall(f".//{SVG}g[@class='lane']")
    widths = [sum(float(each.attrib["width"]) for each in bar.findall(f"{SVG}rect[@class='work']")) for bar in bars]
    for width, pairs in zip(widths, area, strict=True):
        assert width / sum(widths) == pytest.approx(pairs / sum(area), abs=2e-3)


@pytest.mark.parametrize("strategy", ["allgather", "ulysses"])
def test_other_strategies_stand_beside_those_of_the_paper(inspect: Inspect, strategy: str) -> None:
    for name in ("plan", "tiles", "tokens", "work"):
        assert list(panels(inspect("llama", strategy=strategy, world=4).to_svg(name))) == [strategy, *BESIDE]


def test_of_large_worlds_some_ranks_are_drawn() -> None:
    assert chosen_ranks(16) == tuple(range(16))
    assert chosen_ranks(1024) == tuple(range(0, 1024, 64))
    tiling = make_tiling(Setting("contiguous", CAUSAL, 1 << 14, 1 << 14, 100))
    assert len(tiling.blocks) == 256
    assert tiling.steps[0][0] == 0
    assert tiling.steps[-1][1] == 99
    assert all(first <= block.step <= last for block in tiling.blocks for first, last in [tiling.steps[block.group]])


def test_a_file_of_its_own(inspect: Inspect, tmp_path: Path) -> None:
    text = inspect("llama").to_svg("plan", tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text("utf-8") == text
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 150_000


def test_unknown_pictures_are_refused(inspect: Inspect) -> None:
    with pytest.raises(sp.InputError, match=r"there is no picture 'tile'\n  needed: one of: plan, tiles, tokens, work"):
        inspect("llama").to_svg("tile")
    with pytest.raises(sp.InputError, match=r"there is no attention 3\n  needed: a number from 0 to 0"):
        inspect("llama").to_svg(attention=3)


def test_colours_rise_in_lightness() -> None:
    colours = ramp(9)
    assert len(set(colours)) == 9
    assert is_dark(colours[0])
    assert not is_dark(colours[-1])
    assert ramp(1) == [colours[0]]
