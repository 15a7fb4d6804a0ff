"""The dense kernel defines what is correct, so it is compared with autograd through a softmax written out in fp64."""

import pytest
import torch
from torch import Tensor

from sp.plan import Tile
from sp.runtime.kernels import KERNELS, dense
from tests.runtime.attention_reference import SCALE, relative_errors

ROWS, COLUMNS = 7, 9
BANDS = [(None, None), (None, 0), (None, 3), (None, -2), (0, None), (-3, None), (2, None), (-2, 1), (0, 0), (1, 4)]
TILES = [Tile(0, ROWS, 0, COLUMNS, lower, upper) for lower, upper in BANDS]


def make_operands(dtype: torch.dtype, groups: int = 2, value_size: int = 8) -> list[Tensor]:
    """q, k, v and the gradient of the output for 4 query heads."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, 4, ROWS, 8), (2, groups, COLUMNS, 8), (2, groups, COLUMNS, value_size), (2, 4, ROWS, value_size)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def written_out(operands: list[Tensor], tile: Tile) -> tuple[list[Tensor], list[Tensor]]:
    """[out, lse] and [dq, dk, dv] in float64, by autograd."""
    q, k, v = (x.double().requires_grad_() for x in operands[:3])
    share = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(share, 1).mT * SCALE
    pairs = [[tile.visible(x, y) for y in range(tile.k0, tile.k1)] for x in range(tile.q0, tile.q1)]
    hidden = ~torch.tensor(pairs)
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1).masked_fill(hidden.all(-1, keepdim=True), 0)
    out = weights @ v.repeat_interleave(share, 1)
    return [out, scores.logsumexp(-1)], list(torch.autograd.grad(out, (q, k, v), operands[3].double()))


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("groups", "value_size"), [(4, 8), (2, 8), (1, 5)])
def test_float64_is_exact(tile: Tile, groups: int, value_size: int) -> None:
    operands = make_operands(torch.float64, groups, value_size)
    results, gradients = written_out(operands, tile)
    q, k, v, grad = operands
    if all(any(tile.visible(x, y) for y in range(COLUMNS)) for x in range(ROWS)):
        out, lse = dense.forward(q, k, v, tile, SCALE, None)
        found = dense.backward(grad, q, k, v, out, lse, tile, SCALE, None, [])
        assert max(relative_errors([out, lse], results)) < 1e-14
        assert max(relative_errors(list(found), gradients)) < 1e-14


@pytest.mark.parametrize("bounds", [(None, -2), (5, None), (-9, -8), (20, 30)])
def test_rows_that_see_nothing(bounds: tuple[int | None, int | None]) -> None:
    """Plans have no such rows; they get 0 and -inf all the same, and no gradient becomes nan."""
    tile = Tile(0, ROWS, 0, COLUMNS, *bounds)
    blind = [not any(tile.visible(x, y) for y in range(COLUMNS)) for x in range(ROWS)]
    assert any(blind)
    q, k, v, grad = make_operands(torch.float64)
    out, lse = dense.forward(q, k, v, tile, SCALE, None)
    assert (lse[:, :, blind] == -torch.inf).all()
    assert (out[:, :, blind] == 0).all()
    for gradient in dense.backward(grad, q, k, v, out, lse, tile, SCALE, None, []):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_arithmetic_is_float32(dtype: torch.dtype) -> None:
    tile, operands = TILES[2], make_operands(dtype)
    q, k, v, grad = operands
    results, gradients = written_out(operands, tile)
    out, lse = dense.forward(q, k, v, tile, SCALE, None)
    found = dense.backward(grad, q, k, v, out, lse, tile, SCALE, None, [])
    assert all(x.dtype == torch.float32 for x in (out, lse, *found))
    assert max(relative_errors([out, lse], results)) < 1e-6
    assert max(relative_errors(list(found), gradients)) < 1e-6


def test_huge_scores_do_not_overflow() -> None:
    q, k, v, grad = (1e3 * x for x in make_operands(torch.float32))
    out, lse = dense.forward(q, k, v, TILES[1], SCALE, None)
    gradients = dense.backward(grad, q, k, v, out, lse, TILES[1], SCALE, None, [])
    assert all(x.isfinite().all() for x in (out, lse, *gradients))


def test_takes_everything() -> None:
    kernel = KERNELS["dense"]
    q = torch.empty(1, 2, 3, 5, dtype=torch.float64, device="meta")
    kernel.check(q, q, q[..., :2])
    assert kernel.cut(TILES[7], "cpu") == (TILES[7],)
