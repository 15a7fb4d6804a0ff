"""Every kind of attention can be drawn: windows beside full ones, queries without a sequence, two lengths, one rank."""

from collections.abc import Callable
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import sp
from sp.layout import find_layout
from sp.mask import CAUSAL, Band
from sp.plan import make_plan
from sp.show import Report
from sp.show.pictures.miniature import make_miniature
from sp.show.pictures.panels import Comparison, compare
from sp.show.pictures.tiling import Setting, make_tiling
from sp.show.pictures.timeline import in_step, totals

Inspect = Callable[..., Report]
HEADS, WIDTH = 2, 8


def comparisons(report: Report) -> list[Comparison]:
    return compare(report._attentions, report.program.strategy, report.world)


class Pooling(nn.Module):
    """Learned queries, and after them a window and a causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(9, HEADS * WIDTH)
        self.queries = nn.Parameter(torch.randn(1, HEADS, 3, WIDTH))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(ids).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        positions = torch.arange(ids.shape[1])
        away = positions[:, None] - positions[None, :]
        x = scaled_dot_product_attention(x, x, x, attn_mask=(away >= 0) & (away < 4))
        x = scaled_dot_product_attention(x, x, x, is_causal=True)
        return scaled_dot_product_attention(self.queries, x, x), x


def test_each_kind_has_its_own_picture() -> None:
    report = sp.inspect(Pooling(), (torch.zeros(1, 24, dtype=torch.long),), strategy="striped", world_size=3)
    window, causal, pooling = comparisons(report)
    assert [each.mask for each in (window, causal, pooling)] == ["window(3, 0)", "causal", "full"]
    assert [len(each.panels) for each in (window, causal, pooling)] == [3, 3, 1]
    assert pooling.own.note == "every rank has all queries, and its own keys"
    assert sum(block.area for block in pooling.own.tiling.blocks) == 3 * 24
    for number in range(3):
        for name in ("plan", "tiles", "tokens", "work"):
            assert ElementTree.fromstring(report.to_svg(name, attention=number)).attrib["role"] == "img"
    assert report.to_html().count('class="plan"') == 3


def test_what_masks_of_data_hide_is_said_and_not_drawn() -> None:
    class Padded(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            x = x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
            return scaled_dot_product_attention(x, x, x, attn_mask=mask[:, None, None, :])

    inputs = torch.randn(1, 24, HEADS * WIDTH), torch.ones(1, 24, dtype=torch.bool)
    report = sp.inspect(Padded(), inputs, strategy="ring", world_size=3)
    (comparison,) = comparisons(report)
    assert comparison.of_data
    (note,) = comparison.notes
    assert note.startswith("Masks of data hide more when the model runs")
    assert note in report.to_html()
    assert note in report.to_svg("tiles")
    assert comparison.advice == ""


def test_a_world_of_one(inspect: Inspect) -> None:
    (comparison,) = comparisons(inspect("llama", strategy="ring", world=1))
    assert [panel.timeline.length for panel in comparison.panels] == [1.0, 1.0, 1.0]
    assert comparison.advice == ""
    assert comparison.notes == []
    assert 'max="0"' in inspect("llama", strategy="ring", world=1).to_html()


def test_two_lengths_have_no_tokens_to_show() -> None:
    assert make_miniature(Setting("striped", Band(), 24, 36, 3)) is None
    assert make_miniature(Setting("striped:4", CAUSAL, 24, 24, 3)) is None
    assert make_miniature(Setting("striped", CAUSAL, 1 << 12, 1 << 12, 32)) is None


@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
@pytest.mark.parametrize("mask", [CAUSAL, Band(), Band(1024, 0)], ids=str)
def test_a_miniature_computes_every_visible_pair_once(layout: str, mask: Band) -> None:
    found = make_miniature(Setting(layout, mask, 4096, 4096, 4))
    assert found
    small = Band(mask.left and mask.left * found.length // 4096, mask.right)
    pairs = [pair for _, _, cells in found.cells for pair in cells]
    every = [(i, j) for i in range(found.length) for j in range(found.length) if small.visible(i, j)]
    assert sorted(pairs) == every
    dealt = [find_layout(layout).positions(len(found.owners), rank, 4) for rank in range(4)]
    assert [[token for token, rank in enumerate(found.owners) if rank == one] for one in range(4)] == dealt


@pytest.mark.parametrize("inner", [None, 2])
def test_blocks_are_the_steps_of_the_plans(inner: int | None) -> None:
    tiling = make_tiling(Setting("striped", CAUSAL, 37, 37, 4, inner))
    for block in tiling.blocks:
        step = make_plan("striped", CAUSAL, 37, 4, block.rank, inner=inner).steps[block.step]
        assert (block.source, block.tiles, block.group) == (step.source, step.tiles, block.step)


def test_a_step_lasts_as_long_as_its_slowest_rank() -> None:
    timeline = in_step(make_tiling(Setting("contiguous", CAUSAL, 8, 8, 2)))
    share = (8 * 9 // 2) / 2  # pairs
    (first, second) = (lane.segments for lane in timeline.lanes)
    assert [segment.work * share for segment in first] == [10, 0]
    assert [segment.work * share for segment in second] == [10, 16]
    assert [segment.stop * share for segment in first] == [10, 26]
    assert timeline.length * share == pytest.approx(26)
    assert timeline.waiting == pytest.approx(1 - 18 / 26)


def test_totals_wait_for_the_busiest() -> None:
    timeline = totals([1, 2, 3], (0, 2))
    assert [lane.work for lane in timeline.lanes] == [0.5, 1.5]
    assert timeline.length == 1.5
    assert totals([0, 0], (0,)).waiting == 0
