"""Links that leave the project are of a few reviewed forms, so that a typo is noticed.

They are not fetched: no test needs the internet. Links between pages and anchors in them are held by the build of the
site (`make docs`, where a dead one is an error) and by tests/test_docs.py."""

import re
from pathlib import Path

import pytest

from tests.documents import ROOT

# Read, by a person, with the paper beside it.
PAPERS = {
    "2205.14135": "FlashAttention (Dao et al. 2022)",
    "2309.14509": "DeepSpeed Ulysses (Jacobs et al. 2023)",
    "2310.01889": "Ring Attention (Liu et al. 2023)",
    "2311.09431": "Striped Attention (Brandon et al. 2023)",
    "2405.07719": "USP (Fang & Zhao 2024)",
    "2406.18485": "LoongTrain (Gu et al. 2024)",
    "2407.21783": "The Llama 3 herd of models (2024)",
    "2411.01783": "Context parallelism for inference (Yang et al. 2024)",
    "2510.18830": "MTraining (2025)",
}
SITES = {
    "http://www.w3.org/2000/svg",  # the name of a vocabulary, not a page
    "https://github.com/pytorch/pytorch/issues/135712",
    "https://keepachangelog.com/en/1.1.0/",
    "https://semver.org/spec/v2.0.0.html",
    "https://ui.perfetto.dev",
}
PLACES = ("*.md", "pyproject.toml", "docs/**/*.md", "sp/**/*.py", "examples/*.py", "benchmarks/*.py")
ADDRESS = re.compile(r"https?://[^\s<>()\"'`{}\\]*[^\s<>()\"'`{}\\.,;:]")
PAPER = re.compile(r"arxiv(?:\.org/\w+/|[\s:]+)(\d[\w.]*\w)", re.IGNORECASE)


def unknown(text: str) -> list[str]:
    """The addresses and papers of a text that nobody has reviewed."""
    papers = [number for number in PAPER.findall(text) if number not in PAPERS]
    known = SITES | {f"https://arxiv.org/abs/{number}" for number in PAPERS}
    return papers + [address for address in ADDRESS.findall(text) if address not in known]


def sources() -> list[Path]:
    return [path for place in PLACES for path in sorted(ROOT.glob(place)) if "_build" not in path.parts]


def test_every_address_and_paper_is_a_reviewed_one() -> None:
    read = {path: path.read_text("utf-8") for path in sources()}
    assert not {path.relative_to(ROOT).as_posix(): found for path, text in read.items() if (found := unknown(text))}
    cited = {number for text in read.values() for number in PAPER.findall(text)}
    assert cited == set(PAPERS), "a paper that nobody cites any more"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[Striped](https://arxiv.org/abs/2311.09431), arXiv 2405.07719.", []),
        ("https://arxiv.org/abs/2311.09413", ["2311.09413", "https://arxiv.org/abs/2311.09413"]),
        ("http://arxiv.org/abs/2311.09431", ["http://arxiv.org/abs/2311.09431"]),
        ("https://arxiv.org/abs/2311.09431v", ["2311.09431v", "https://arxiv.org/abs/2311.09431v"]),
        ("arXiv:2311.0943", ["2311.0943"]),
        ("see https://ui.perfeto.dev.", ["https://ui.perfeto.dev"]),
    ],
)
def test_a_typo_is_noticed(text: str, found: list[str]) -> None:
    assert unknown(text) == found
