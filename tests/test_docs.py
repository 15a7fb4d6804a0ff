"""The code of docs/**/*.md runs, in order, and prints what the pages show."""

import re

import pytest

from sp.passes.rule_book import BOOK
from tests.documents import ROOT, blocks, missing

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)


@pytest.fixture(autouse=True)
def _rules_end_with_the_page(monkeypatch):
    monkeypatch.setattr(BOOK, "_entries", {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_prints_what_is_shown(page, capsys):
    exec("\n".join(blocks(page, "python")), {"__name__": "page"})
    assert not missing("".join(blocks(page, "")), capsys.readouterr().out)


def test_links_between_pages_lead_somewhere():
    for page in (*PAGES, ROOT / "README.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_a_line_that_was_not_printed_is_missing():
    assert missing("a\nb \nc {…}\nd …\n", "b\nc {1}\n") == ["a", "d …"]
