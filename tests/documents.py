"""Reading the code blocks of a Markdown document, for tests that run them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks(document: Path, language: str | None = None) -> list[str]:
    """Its fenced blocks in order; those of one language ("" is no language) where that is given."""
    fenced = re.findall(r"^```(\S*)\n(.*?)^```$", document.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [text for found, text in fenced if language is None or found == language]


def missing(shown: str, printed: str) -> list[str]:
    """The lines that are shown and were not printed; `…` stands for anything."""
    known = [line.rstrip() for line in printed.splitlines()]
    patterns = {line: re.escape(line.rstrip()).replace("…", ".*") for line in shown.splitlines()}
    return [line for line, pattern in patterns.items() if not any(re.fullmatch(pattern, one) for one in known)]
