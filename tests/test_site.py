"""The site of docs/: every page is in its contents, and docstrings become what Sphinx reads."""

import re
import sys

import pytest

from tests.documents import ROOT

DOCS = ROOT / "docs"


@pytest.fixture
def convert(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import docstrings

    yield docstrings.convert
    del sys.modules["docstrings"]


def test_every_page_is_in_the_contents():
    listed = re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE)
    pages = (page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md"))
    assert sorted(listed) == sorted(page for page in pages if page != "index")


def test_terms_code_and_text(convert):
    text = """What it does, with `names` and a * in it.

        code = example(*args)

    model, others: what they are,
        and more of it
    world: how many
    and a line that goes on.""".replace("\n    ", "\n")
    assert convert(text.splitlines()) == [
        "What it does, with ``names`` and a \\* in it.",
        "",
        ".. code-block:: python",
        "",
        "    code = example(*args)",
        "",
        "``model``, ``others``",
        "    what they are, and more of it",
        "",
        "``world``",
        "    how many and a line that goes on.",
        "",
    ]


@pytest.mark.parametrize("indent", ["", "    "])
def test_examples_are_sessions(convert, indent):
    """Those of a docstring with nothing else stand at its margin, where the formatter puts them."""
    lines = [f"{indent}>>> names: dict = {{}}", f"{indent}{{'a': 1}}"]
    assert convert(lines) == [".. code-block:: pycon", "", "    >>> names: dict = {}", "    {'a': 1}", ""]
