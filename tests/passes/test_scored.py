"""The node between two passes can be run, and says what may be done to scores."""

import math

import torch
from torch import fx

from sp.passes.scored import is_elementwise, scored_attention

aten = torch.ops.aten


def test_sink_and_groups() -> None:
    """One more key of value zero; two query heads for each value head."""
    value, root, sink = torch.randn(2, 2, 5, 3), torch.randn(2, 4, 6, 5), torch.randn(1, 4, 1, 1)
    out = scored_attention(root, root, value, root, root, sink, 1.0, "nan")
    joined = torch.cat([root, sink.expand(2, 4, 6, 1)], -1).softmax(-1)[..., :5]
    torch.testing.assert_close(out, joined @ value.repeat_interleave(2, 1))


def test_hidden_rows() -> None:
    value, root = torch.ones(1, 1, 2, 1), torch.tensor([[[[0.0, 0.0], [-math.inf, -math.inf]]]])
    found = [scored_attention(root, root, value, root, root, None, 1.0, rows).flatten() for rows in ("nan", "zero")]
    torch.testing.assert_close(found[0], torch.tensor([1.0, math.nan]), equal_nan=True)
    torch.testing.assert_close(found[1], torch.tensor([1.0, 0.0]))


def test_elementwise() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    assert is_elementwise(graph.call_function(aten.where.self, (x, x, x)))
    assert not is_elementwise(graph.call_function(aten.cumsum.default, (x, 0)))
    assert not is_elementwise(x)
