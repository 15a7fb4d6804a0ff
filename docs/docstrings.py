"""The docstrings of `sp` are plain text; this makes reStructuredText of them.

name: what it is,             →   :name: what it is, more of it
    more of it

    code = example()          →   .. code-block:: python
>>> example()                 →   .. code-block:: pycon
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import groupby

_TERM = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): +(.*)", re.DOTALL)


def convert(lines: list[str]) -> list[str]:
    return [line for paragraph in _paragraphs(lines) for line in _paragraph(paragraph)]


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    for blank, block in groupby(lines, lambda line: not line.strip()):
        if not blank:
            yield list(block)


def _paragraph(lines: list[str]) -> list[str]:
    if lines[0].lstrip().startswith(">>> "):
        return [
            ".. code-block:: pycon",
            "",
            *(f"    {line}" for line in textwrap.dedent("\n".join(lines)).split("\n")),
            "",
        ]
    if all(line.startswith("    ") for line in lines):
        return [".. code-block:: python", "", *lines, ""]
    return [line for entry in _entries(lines) for line in _entry(" ".join(part.strip() for part in entry))]


def _entries(lines: list[str]) -> Iterator[list[str]]:
    """Lines that belong together: what begins a term begins anew, and what goes on is indented or follows text."""
    entry: list[str] = []
    for line in lines:
        if entry and _TERM.match(line):
            yield entry
            entry = []
        entry.append(line)
    yield entry


def _entry(text: str) -> list[str]:
    found = _TERM.match(text)
    if found is None:
        return [_escaped(text), ""]
    return [", ".join(f"``{name}``" for name in found[1].split(", ")), f"    {_escaped(found[2])}", ""]


def _escaped(text: str) -> str:
    """Names in backticks are code, and no other sign means anything."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(f"``{part}``" if at % 2 else re.sub(r"([*_|\\])", r"\\\1", part) for at, part in enumerate(parts))
