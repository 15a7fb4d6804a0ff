"""FlashAttention of torch on CPU against the dense kernel, piece by piece; what it refuses."""

import itertools

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from sp.errors import InputError, StrategyError
from sp.plan import Tile
from sp.runtime.kernels import KERNELS, dense, find_kernel, flash
from tests.runtime.attention_reference import SCALE, relative_errors

TILES = [
    Tile(0, 9, 0, 6),
    Tile(0, 1, 0, 1),
    Tile(0, 9, 0, 9, None, 0),
    Tile(0, 9, 0, 9, 0, None),
    Tile(0, 9, 0, 12, -3, 4),
    Tile(0, 300, 0, 400, None, 300),  # blocks of rows, of which the last is full
    Tile(0, 300, 0, 520),  # more than one of the operator's own tiles
    Tile(0, 520, 0, 520, None, 0),
    Tile(0, 520, 0, 520, 0, None),
]
TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
MEMORY = ["heads first", "tokens first", "rows of more", "sizes first"]


def laid_out(memory: str, heads: int, length: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Random [batch, heads, length, 16] in some memory layout; the last has a stride of its own in the last dim."""
    x = torch.randn(2 if length < 99 else 1, heads, length, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if memory == "tokens first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if memory == "rows of more":
        return torch.cat([x[:, :, :2], x, x[:, :, :3]], dim=2)[:, :, min(2, length) : min(2, length) + length]
    return x.mT.contiguous().mT if memory == "sizes first" else x


def compare(tile: Tile, dtype: torch.dtype, groups: int, memories: tuple[str, ...]) -> float:
    """The largest relative error of the flash kernel against the dense one in float64."""
    sizes = [(4, tile.q1), (groups, tile.k1), (groups, tile.k1), (4, tile.q1)]
    operands = [laid_out(m, h, s, dtype, i) for i, (m, (h, s)) in enumerate(zip(memories, sizes, strict=True))]
    q, k, v, grad = operands
    exact = [x.double() for x in operands]
    out, lse = dense.forward(*exact[:3], tile, SCALE, None)
    gradients = dense.backward(exact[3], *exact[:3], out, lse, tile, SCALE, None, [])
    found = flash.forward(q, k, v, tile, SCALE, None)
    back = flash.backward(grad, q, k, v, out.to(dtype), lse.to(found[1].dtype), tile, SCALE, None, [])
    errors = [*relative_errors(list(found), [out, lse]), *relative_errors(list(back), list(gradients))]
    return max(errors)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_agrees_with_dense(tile: Tile, groups: int, dtype: torch.dtype) -> None:
    assert compare(tile, dtype, groups, ("tokens first",) * 4) < TOLERANCES[dtype]


@pytest.mark.parametrize("memories", list(itertools.product(MEMORY, repeat=2)), ids=str)
def test_any_memory_layout(memories: tuple[str, str]) -> None:
    """A last dim whose stride is not 1 is silently wrong in the CPU operator."""
    mine, theirs = memories
    for tile in TILES[:5]:
        assert compare(tile, torch.float32, 2, (mine, theirs, theirs, mine)) < TOLERANCES[torch.float32]
        assert compare(tile, torch.float32, 2, (theirs, mine, theirs, mine)) < TOLERANCES[torch.float32]


def test_lse_is_float32_or_float64() -> None:
    for dtype in TOLERANCES:
        q = torch.randn(1, 1, 4, 8, dtype=torch.float64).to(dtype)
        out, lse = flash.forward(q, q, q, TILES[0], SCALE, None)
        assert out.dtype == dtype
        assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_empty_pieces_never_reach_the_operator() -> None:
    q = torch.zeros(1, 1, 0, 8)
    with pytest.raises(AssertionError, match="rows and columns"):
        flash.forward(q, q, q, Tile(0, 0, 0, 0), SCALE, None)


REFUSED = [
    ("cpu", torch.int64, 8, 8, InputError, "flash attention on cpu got torch.int64"),
    ("cuda", torch.float32, 8, 8, InputError, "flash attention on cuda got torch.float32"),
    ("cuda", torch.float64, 8, 8, InputError, "one of: bfloat16, float16"),
    ("cuda", torch.bfloat16, 264, 264, InputError, "head size 264"),
    ("cuda", torch.bfloat16, 64, 260, InputError, r"head size 260(.|\n)*at most 256"),
    ("xpu", torch.bfloat16, 8, 8, StrategyError, "no flash attention on xpu"),
]


@pytest.mark.parametrize(("device", "dtype", "size", "value_size", "error", "message"), REFUSED)
def test_refuses_what_the_operator_cannot_do(
    device: str, dtype: torch.dtype, size: int, value_size: int, error: type[Exception], message: str
) -> None:
    with FakeTensorMode():
        q, v = (torch.empty(1, 2, 3, n, dtype=dtype, device=device) for n in (size, value_size))
        with pytest.raises(error, match=message):
            KERNELS["flash"].check(q, q, v)


def test_unknown_kernel() -> None:
    with pytest.raises(StrategyError, match=r"'flush'(.|\n)*one of: dense, flash"):
        find_kernel("flush")
