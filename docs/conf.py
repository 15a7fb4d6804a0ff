"""Sphinx reads this: how the pages of this folder become a site (`make docs`)."""

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from docstrings import convert

project = "sp"
copyright = "The sp authors"  # noqa: A001 - Sphinx's own word
release = metadata.version("sp-compiler")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "sp"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings give shapes, dtypes and what is local or global, which types do not
exclude_patterns = ["_build"]


def setup(app: Any) -> None:
    def rewrite(_app: Any, _what: str, _name: str, _obj: object, _options: Any, lines: list[str]) -> None:
        lines[:] = convert(lines)

    app.connect("autodoc-process-docstring", rewrite)
