"""What CUDA's operators are asked for, computed on CPU by their definition, against the dense kernel.

The definition (flash-attn's README): with R queries and C keys, query i sees the keys from i + C - R - left to
i + C - R + right; a negative side is open.  It takes the operators' place on CPU for as long as a test lasts.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sp.plan import Tile, trim
from sp.runtime.kernels import dense, flash, operators
from tests.runtime.attention_reference import SCALE, relative_errors

TILES = [
    Tile(0, 9, 0, 6),
    Tile(0, 9, 0, 9, None, 0),
    Tile(0, 9, 0, 9, 0, None),
    Tile(0, 9, 0, 12, -3, 4),
    Tile(0, 9, 0, 14, None, 6),
    Tile(0, 7, 0, 4, -3, None),
    Tile(2, 9, 5, 20, 0, 8),
]


def seen(rows: int, columns: int, causal: bool, left: int, right: int) -> Tensor:
    if causal:
        right = 0
    middle = torch.arange(rows)[:, None] + columns - rows
    key = torch.arange(columns)
    open_left, open_right = torch.tensor(left < 0), torch.tensor(right < 0)
    return (open_left | (key >= middle - left)) & (open_right | (key <= middle + right))


def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any, scale: float, **sides: int) -> tuple[Tensor, ...]:
    """q [B, R, H, D], k and v [B, C, G, D]."""
    cum_q, cum_k, max_q, max_k, dropout, causal, debug = rest
    assert (cum_q, cum_k, max_q, max_k, dropout, debug) == (None, None, q.shape[1], k.shape[1], 0.0, False)
    out, lse, _ = attend(q, k, v, causal, scale, **sides)
    empty = torch.empty(0)
    return out, lse, empty, empty, empty


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, window_size_left: int, window_size_right: int
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    visible = seen(q.shape[2], k.shape[2], causal, window_size_left, window_size_right)
    scores = (q @ k.mT * scale).masked_fill(~visible, -torch.inf)
    weights = scores.softmax(-1)
    return (weights @ v).transpose(1, 2), scores.logsumexp(-1), weights


def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any, **named: Any) -> Any:
    """Of the definition: `out` and `lse` are of whole rows, so that weights are exp(scores - lse)."""
    cum_q, cum_k, max_q, max_k, dropout, causal, _seed, _offset = rest
    assert (cum_q, cum_k, max_q, max_k, dropout) == (None, None, q.shape[1], k.shape[1], 0.0)
    assert lse.is_contiguous(), "CUDA reads it as [B, H, S] whatever its strides"
    found, found_lse, weights = attend(q, k, v, causal, **named)
    torch.testing.assert_close((found, found_lse), (out, lse))
    grad, out, q, k, v = (x.transpose(1, 2) for x in (grad, out, q, k, v))
    times = q.shape[1] // k.shape[1]
    wide_k, wide_v = (x.repeat_interleave(times, 1) for x in (k, v))
    slope = weights * (grad @ wide_v.mT - (grad * out).sum(-1, keepdim=True)) * named["scale"]
    dk, dv = ((x.mT @ y).unflatten(1, (-1, times)).sum(2) for x, y in ((slope, q), (weights, grad)))
    return tuple(x.transpose(1, 2) for x in (slope @ wide_k, dk, dv))


@pytest.fixture(autouse=True)
def _cuda_is_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The operators have CPU implementations, and operands are taken the way of CUDA."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", forward, "CPU")
        library.impl("_flash_attention_backward", backward, "CPU")
        monkeypatch.setattr(operators, "_device", lambda _: "cuda")
        yield


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("size", [16, 12])
def test_agrees_with_dense(tile: Tile, groups: int, size: int) -> None:
    assert trim(tile) == tile, "plans hold trimmed tiles alone"
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int, length: int) -> Tensor:
        x = torch.randn(2, length, heads, size, generator=generator, dtype=torch.float64)
        return x.transpose(1, 2)

    rows, columns = tile.q1 - tile.q0, tile.k1 - tile.k0
    q, grad, k, v = draw(4, rows), draw(4, rows), draw(groups, columns), draw(groups, columns)
    out, lse = dense.forward(q, k, v, tile, SCALE, None)
    gradients = dense.backward(grad, q, k, v, out, lse, tile, SCALE, None, [])
    window = flash.window(tile)
    found = operators.run_forward(q, k, v, window, SCALE)
    back = operators.run_backward(grad, q, k, v, out, lse, window, SCALE)
    assert max(relative_errors([*found, *back], [out, lse, *gradients])) < 1e-13
