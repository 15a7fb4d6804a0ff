"""The page: it holds what the report knows, loads nothing, and is not taken in by names."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.models import Llama, LlamaConfig
from sp.show import Report

Inspect = Callable[..., Report]
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'&"  # torch takes no quotation mark


class Page(HTMLParser):
    """Tags with their attributes, in order; and what stands in each kind of tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.text.setdefault(self._open[-1], []).append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def pictures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_it_loads_nothing(inspect: Inspect) -> None:
    page = Page(inspect("llama").to_html())
    assert not [name for name, _ in page.tags if name in ("link", "img", "iframe", "object", "embed", "base")]
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "action", "ping"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        assert (attributes.get("href") or "#").startswith("#")
    (policy,) = [each["content"] for tag, each in page.tags if tag == "meta" and "http-equiv" in each]
    assert policy
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"url\(|@import", "".join(page.text["style"]))


def test_every_picture_can_be_read_and_says_what_it_shows(inspect: Inspect) -> None:
    found = pictures(inspect("llama", strategy="ring", world=4).to_html())
    assert len(found) == 3 * 4 + 2
    for svg in found:
        children = {child.tag.rpartition("}")[2]: child.text for child in svg[:2]}
        assert children["title"]
        assert children["desc"]
        assert svg.attrib["role"] == "img"


def test_rows_are_those_of_the_data(inspect: Inspect) -> None:
    text = inspect("llama").to_html()
    page = Page(text)
    before, after = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    shown = [attributes["data-row"] for tag, attributes in page.tags if "data-row" in attributes]
    kinds = [row[1] for graph in (before, after) for row in graph]
    assert len(shown) == sum(kind not in ("open", "close") for kind in kinds)
    assert kinds.count("attention") == 2
    assert {"inserted", "gone", "input", "output"} <= set(kinds)


def test_names_of_others_stay_text() -> None:
    class Hostile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({EVIL: nn.Embedding(9, 8)})

        def forward(self, ids: Tensor) -> Tensor:
            (part,) = self.parts.values()
            return part(ids).relu()

    report = sp.inspect(Hostile(), (torch.zeros(1, 16, dtype=torch.long),), world_size=2)
    text = report.to_html()
    page = Page(text)
    assert page.count("script") == 2
    assert page.count("img") == 0
    assert "alert(1)" in text
    assert EVIL in "".join(page.text["code"])
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert any(EVIL in str(row[4]) for row in data[1])
    framed = Page(report._repr_html_())
    assert [tag for tag, _ in framed.tags] == ["iframe"]
    assert framed.tags[0][1]["srcdoc"] == text


def test_it_is_written_where_it_is_asked_for(inspect: Inspect, tmp_path: Path) -> None:
    text = inspect("gpt").to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == text
    assert text == inspect("gpt").to_html(), "the same report makes the same page"


def test_estimates_are_shown_where_there_are_some(inspect: Inspect) -> None:
    shape = sp.costs.ModelShape(layers=2, width=64, heads=4, kv_heads=2, head_width=16, mlp_width=128, vocab_size=256)
    estimates = sp.estimate(shape, 4096, 8, "h100")
    text = inspect("llama").to_html(estimates=estimates)
    assert "Estimated steps on h100" in text
    assert "Estimated steps" not in inspect("llama").to_html()


def test_of_two_axes(inspect: Inspect) -> None:
    ids = torch.zeros(1, 64, dtype=torch.long)
    model = Llama(LlamaConfig(layers=2, heads=4, kv_heads=2, width=32))
    for strategy in ("usp", "double_ring"):
        text = sp.inspect(model, (ids,), strategy=strategy, world_size=(2, 4)).to_html()
        assert f'data-strategy="{strategy}"' in text
        assert text.count('class="panel own"') == 1


def test_model_without_attention() -> None:
    class Pointwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(9, 8)

        def forward(self, ids: Tensor) -> Tensor:
            return self.tokens(ids).relu()

    report = sp.inspect(Pointwise(), (torch.zeros(1, 16, dtype=torch.long),), world_size=2)
    assert "No attention along the sequence" in report.to_html()
    with pytest.raises(sp.InputError, match="no attention along the sequence, and so no plan to draw"):
        report.to_svg()


def large_report(layers: int, world: int) -> Report:
    ids = torch.zeros(1, 1 << 20, dtype=torch.long, device="meta")
    with torch.device("meta"):
        model = Llama(LlamaConfig(layers=layers, heads=2, kv_heads=1, width=32))
    return sp.inspect(model, (ids,), {"labels": ids}, world_size=world)


def test_pages_do_not_grow_with_layers_and_ranks(inspect: Inspect) -> None:
    small, deep = inspect("llama").to_html(), large_report(4, 8)
    assert len(deep.to_html()) < 1.1 * len(small)
    assert len(replace(deep, world=64).to_html()) < 400_000
    assert len(deep._repr_html_()) < 400_000


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pages_of_126_layers() -> None:
    report = large_report(126, 16)
    for world in (16, 1024):
        assert len(replace(report, world=world).to_html().encode()) < 600_000
