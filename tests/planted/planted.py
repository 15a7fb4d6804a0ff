"""Planted models: what each is, and what may become of it.

A planted model does something along the sequence that dealing the tokens out to ranks gets wrong if nobody takes care.
Two outcomes are right: it is computed exactly, or it is refused and the culprit is named.
"""

import linecache
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sp

S, D, VOCAB, LONGEST = 12, 8, 11, 16
MARK = "# here"  # ends each line of a planted model that may be blamed

Way = Callable[["Net", Tensor, Tensor, Tensor], Any]
Parts = Callable[[], Mapping[str, Any]]


class Net(nn.Module):
    """An embedding, a linear layer, and then whatever was planted: `way(net, x[B, S, D], ids[B, S], labels[B, S])`.

    `parts` gives it more layers; `p` is a table of positions, `w` a matrix over them."""

    def __init__(self, way: Way, parts: Mapping[str, Any]) -> None:
        super().__init__()
        self.e, self.a = nn.Embedding(VOCAB, D), nn.Linear(D, D)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.head = nn.Linear(D, VOCAB)
        self.p, self.w = nn.Parameter(torch.randn(LONGEST, D)), nn.Parameter(torch.randn(LONGEST, LONGEST))
        self.calls, self.way = 0, way
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        return self.way(self, self.a(self.e(ids)), ids, labels)


@dataclass(frozen=True)
class Planted:
    """way: what is planted.  culprit: a pattern for what a refusal has to name.  parts: more layers for the net.
    train: the mode of the model.  rows, length: of the ids.  placed: False where torch.export refuses without saying
    at which line.  slow: takes seconds."""

    way: Way
    culprit: str
    parts: Parts = field(default=dict[str, Any])
    train: bool = True
    rows: int = 2
    length: int = S
    placed: bool = True
    slow: bool = False

    @property
    def name(self) -> str:
        return self.way.__name__

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return Net(as_forward(self.way), self.parts()).train(self.train)

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Ids, and labels of which some are ignored, more on one row than on the other."""
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(0, VOCAB, (self.rows, self.length), generator=generator)
        labels = ids.clone()
        labels[0, : self.length // 2] = -100
        return ids, labels


def as_forward(way: Way) -> Way:
    """The same function under the name `forward`: torch.export records the lines of functions of that name alone."""
    assert isinstance(way, types.FunctionType)
    return types.FunctionType(way.__code__.replace(co_name="forward"), way.__globals__)


def judge(planted: Planted, *, world: int = 3, strategy: str = "striped") -> str:
    """`exact` or `refused`; anything else fails the test."""
    try:
        report = sp.check(planted.model(), planted.inputs(), world_size=world, strategy=strategy)
    except sp.UnsupportedModelError as error:
        wrong = blame(error, planted)
        if wrong:
            pytest.fail(f"{wrong}\n{error}", pytrace=False)
        return "refused"
    if not report.exact:
        pytest.fail(f"neither exact nor refused:\n{report}", pytrace=False)
    return "exact"


def blame(error: sp.UnsupportedModelError, planted: Planted) -> str:
    """What is wrong with a refusal: it has to name the culprit, and no line but those marked."""
    culprit = planted.culprit
    named = [refusal.node for refusal in error.refusals] or [str(error)]
    if not any(re.search(culprit, text) for text in named):
        return f"the refusal does not name {culprit!r}"
    places = [refusal.source for refusal in error.refusals] or re.findall(r"^  at:     (.+)$", str(error), re.MULTILINE)
    if not planted.placed:
        return ""
    if not places:
        return "the refusal names no source line"
    innocent = [place for place in places if MARK not in line_of(place)]
    return f"the refusal blames {innocent}, lines that are not marked" if innocent else ""


def line_of(place: str) -> str:
    """The source text of `file:line in function`."""
    found = re.match(r"(.+):(\d+) in ", place)
    return linecache.getline(found[1], int(found[2])) if found else ""


def heads(x: Tensor) -> Tensor:
    """[B, S, D] as [B, 2, S, D / 2]."""
    return x.unflatten(-1, (2, -1)).transpose(1, 2)
