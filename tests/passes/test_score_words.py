"""What the report says of scores: a word for each thing that hides, adds or changes, and what it is made of."""

import pytest
import torch

from tests.passes.scores import Maker, rewritten
from tests.passes.test_score_read import READ, additive, causal, keys

MORE: dict[str, Maker] = {
    "padding and documents": lambda d: (
        causal(d) & keys(d) & (d.documents[:, None, :, None] == d.documents[:, None, None])
    ),
    "positions in order": lambda d: d.places[:, None, :, None] >= d.places[:, None, None],
    "rows": lambda d: d.seen[:, None, :, None].expand(2, 1, d.S, d.S),
    "two of one kind": lambda d: keys(d) & (d.documents > 0)[:, None, None],
    "slopes beside padding": lambda d: additive(keys(d)) + d.slopes[:, None, None] * (d.j - d.i),
    "nothing": lambda d: torch.ones(d.S, d.S, dtype=torch.bool),
}
WORDS = {
    "padding": "padding (seen)",
    "padding and causal": "causal & padding (seen)",
    "padding of queries and keys": "rows (seen) & padding (seen)",
    "documents": "causal & documents (documents)",
    "documents from positions": "causal & documents (places)",
    "chunks": "causal & chunks",
    "prefix": "predicate",
    "prefix of each row": "predicate (lengths)",
    "pairs": "mask (pairs)",
    "alibi": "causal & bias (slopes)",
    "table": "table (table)",
    "padding as numbers": "bias (seen)",
    "padding and documents": "causal & padding (seen) & documents (documents)",
    "positions in order": "order (places)",
    "rows": "rows (seen)",
    "two of one kind": "padding (seen) & padding (documents)",
    "slopes beside padding": "bias (seen, slopes)",
    "nothing": "full",
}


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    makers = {name: MORE[name] if name in MORE else READ[name][1] for name in WORDS}
    _, program = rewritten(makers)
    return dict(zip(makers, (site.scores for site in program.attentions), strict=True))


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str, said: dict[str, str]) -> None:
    assert said[name] == WORDS[name]
