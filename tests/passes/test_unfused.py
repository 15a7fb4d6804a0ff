"""A softmax of sequence × sequence values that is not quite an attention is refused, and says why."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.passes.manager import run_passes
from sp.passes.recognize import Recognize
from sp.passes.scored import is_scored
from sp.program import Program
from tests.passes.forms import future, scores
from tests.passes.programs import Attend, normalized

Way = Callable[[Tensor], Tensor | tuple[Tensor, ...]]


def recognized(way: Way, heads: int = 4) -> Program:
    program = normalized(Attend(way), torch.zeros(2, heads, 9, 8))  # pyright: ignore[reportArgumentType]
    return run_passes(program, [Recognize()])


def weights(x: Tensor) -> Tensor:
    return scores(x, x).softmax(-1)


def merged(x: Tensor) -> Tensor:
    return x.expand(2, 4, -1, -1).reshape(8, *x.shape[-2:])


def one_for_all(x: Tensor) -> Tensor:
    """Of the first head's scores, each head's weights."""
    return (scores(x[:, :1], x[:, :1]) * torch.arange(x.shape[1])[:, None, None]).softmax(-1)


def joined(x: Tensor, sinks: int = 1, kept: int | None = -1) -> Tensor:
    more = x.new_zeros(x.shape[0], x.shape[1], x.shape[2], sinks)
    return torch.cat([scores(x, x), more], -1).softmax(-1)[..., :kept]


def disentangled(x: Tensor) -> Tensor:
    """DeBERTa's: what a query says to a relative position."""
    places = torch.arange(x.shape[2])
    index = (places[:, None] - places).clamp(0, 7).expand(x.shape[0], x.shape[1], -1, -1)
    return (scores(x, x) + (x @ x.new_ones(8, 8)).gather(-1, index)).softmax(-1) @ x


REFUSED: dict[str, tuple[str, Way]] = {
    "weights returned": ("its weights are returned, and they are sequence × sequence", weights),
    "weights and output": ("its weights are read by matmul_1 and output", lambda x: (lambda w: (w @ x, w))(weights(x))),
    "weights averaged": (
        "its weights are read by matmul_1 and mean",
        lambda x: (lambda w: (w @ x, w.mean(1).sum(-1)))(weights(x)),
    ),
    "weights scaled": ("its weights go through aten.mul before", lambda x: (weights(x) * 0.5) @ x),
    "dropout": ("it drops out weights with probability 0.1", lambda x: F.dropout(weights(x), 0.1) @ x),
    "over the queries": ("it is a softmax over dim -2", lambda x: scores(x, x).softmax(-2) @ x),
    "over the heads": ("it is a softmax over dim 1", lambda x: scores(x, x).softmax(1) @ x),
    "transposed weights": ("its weights go through aten.transpose", lambda x: weights(x).transpose(2, 3) @ x),
    "weights on the right": ("not summed with the values over the keys", lambda x: x.mT @ weights(x)),
    "weights squared": ("not summed with the values over the keys", lambda x: (lambda w: w @ w)(weights(x)) @ x),
    "no product": (
        "that are no product of queries and keys",
        lambda x: (x[..., 0, None] - x[..., None, :, 0]).softmax(-1) @ x,
    ),
    "two products": (
        "its scores are made of more than one product: matmul and matmul_1",
        lambda x: (x @ x.mT + (x * 2) @ x.mT).softmax(-1) @ x,
    ),
    "relative positions by content": ("its scores are also made of gather", disentangled),
    "talking heads": (
        "its scores go through aten.mean",
        lambda x: (lambda s: s - s.mean(1, keepdim=True))(scores(x, x)).softmax(-1) @ x,
    ),
    "scores kept": (
        "its scores are read by sum_1, too",
        lambda x: (lambda s: (s.softmax(-1) @ x, s.sum((2, 3))))(scores(x, x)),
    ),
    "scores for all heads": ("over batch or heads to meet mul", lambda x: one_for_all(x) @ x),
    "weights for all heads": ("over batch or heads to meet x", lambda x: weights(x[:, :1]) @ x),
    "two sinks": ("its weights go through aten.slice", lambda x: joined(x, 2, -2) @ x),
    "another sink": ("keys are joined to its scores, or weights cut off", lambda x: joined(x, 2, -1)[..., :-1] @ x),
    "cut": ("keys are joined to its scores, or weights cut off", lambda x: weights(x)[..., :-1] @ x[:, :, 1:]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    reason, way = REFUSED[name]
    refusals = "\n".join(map(str, recognized(way).refused.values()))
    assert reason in refusals
    assert "remedy:" in refusals


FOUND: dict[str, Way] = {
    "weights that nobody reads": lambda x: (lambda w: (w @ x, w.mean(1))[0])(weights(x)),
    "dropout of nothing": lambda x: F.dropout(weights(x), 0.0) @ x,
    "maximum subtracted": lambda x: (lambda s: s - s.amax(-1, keepdim=True))(scores(x, x)).softmax(-1) @ x,
    "detached maximum": lambda x: (lambda s: s - s.max(-1, keepdim=True).values.detach())(scores(x, x)).softmax(3) @ x,
    "softmax of a cast": lambda x: F.softmax(scores(x, x), -1, dtype=torch.float64).to(x.dtype) @ x,
    "a mask whose batch and heads the graph merges": lambda x: torch.bmm(
        (merged(x) @ merged(x).mT + merged(future(x)[None, None] * 1.0)).softmax(-1), merged(x)
    ),
    "keys of another length": lambda x: (x @ x[:, :, 1:].mT).softmax(-1) @ x[:, :, 1:],
    "where": lambda x: torch.where(future(x), -math.inf, scores(x, x)).softmax(-1) @ x,
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    program = recognized(FOUND[name])
    assert not program.refused
    assert sum(map(is_scored, program.graph.nodes)) == 1


def test_a_softmax_of_one_sequence_is_none_of_ours() -> None:
    """Attention to a text of four tokens, which every rank has."""
    program = recognized(lambda x: (x @ x.new_ones(8, 4)).softmax(-1) @ x.new_ones(4, 8))
    assert not program.refused
    assert not any(map(is_scored, program.graph.nodes))
