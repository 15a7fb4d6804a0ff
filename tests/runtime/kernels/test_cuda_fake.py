"""The way to CUDA's operators on fake tensors, without a GPU: what they are called with, and what shapes come back."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import sp
from sp.layout import LAYOUTS
from sp.mask import CAUSAL, Band
from sp.models import Llama, LlamaConfig
from sp.plan import Tile, make_plan, trim
from sp.runtime.kernels import choose_kernel, find_kernel, flash
from sp.runtime.kernels.operators import CAUSAL as CAUSAL_WINDOW
from sp.runtime.kernels.operators import FULL, Window
from sp.runtime.ops.attention import attention, attention_backward
from sp.runtime.ring import RING
from sp.runtime.stream import Saved
from sp.runtime.world import World
from tests.runtime.attention_reference import SCALE
from tests.runtime.fake_group import fake_group

FORWARD = "aten._flash_attention_forward.default"
BACKWARD = "aten._flash_attention_backward.default"
DTYPES = [torch.bfloat16, torch.float16]


class Recorder(TorchDispatchMode):
    """The attention operators that are called, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in str(func):
            self.calls.append((str(func), args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def operand(heads: int, length: int, size: int, dtype: torch.dtype) -> Tensor:
    """[2, heads, length, size], as a projection leaves it."""
    return torch.empty(2, length, heads, size, dtype=dtype, device="cuda").transpose(1, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 80, 96, 128])
def test_operators_get_what_they_need(dtype: torch.dtype, size: int) -> None:
    plan, kernel, world = make_plan("striped", CAUSAL, 16, 1, 0), find_kernel("flash"), World(0, 1)
    with FakeTensorMode(), Recorder() as recorder:
        q, grad = (operand(4, 16, size, dtype) for _ in range(2))
        k, v = (operand(2, 16, size, dtype) for _ in range(2))
        kernel.check(q, k, v)
        out, lse = RING.forward(q, k, v, plan, kernel, SCALE, world, None)
        *gradients, _ = RING.backward(grad, Saved(q, k, v, out, lse), plan, kernel, SCALE, world, None)
    (forward, args, kwargs), (backward, back_args, back_kwargs) = recorder.calls
    assert (forward, backward) == (FORWARD, BACKWARD)
    assert args[3:] == (None, None, 16, 16, 0.0, True, False)
    assert kwargs == back_kwargs == {"scale": SCALE, "window_size_left": -1, "window_size_right": 0}
    assert [tuple(x.shape) for x in args[:3]] == [(2, 16, heads, size) for heads in (4, 2, 2)], "heads are not expanded"
    assert [x.shape[2] for x in back_args[:5]] == [4, 4, 2, 2, 4]
    assert all(x.is_contiguous() for x in (*args[:3], *back_args[:5])), "what is laid out [B, S, H, D] is not copied"
    assert back_args[5].is_contiguous(), "CUDA's backward reads lse as [B, H, S] whatever its strides"
    assert back_args[6:12] == (None, None, 16, 16, 0.0, True)
    seed, offset = back_args[12:]
    assert (seed.shape, offset.shape) == ((2,), ())
    assert seed.dtype == offset.dtype == torch.uint64
    assert (lse.shape, lse.dtype) == ((2, 4, 16), torch.float32)
    for result, like in ((out, q), *zip(gradients, (q, k, v), strict=True)):
        expected = dtype if result is out else torch.float32  # the dtype of sums
        assert (result.shape, result.dtype, result.device) == (like.shape, expected, q.device)
        assert result.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("name", ["_flash_attention_forward", "_flash_attention_backward"])
def test_operators_take_windows_and_are_those_that_other_implementations_replace(name: str) -> None:
    """`torch.nn.attention` puts FlashAttention 3 and 4 in the place of these two, by name."""
    schema = getattr(torch.ops.aten, name).default._schema
    assert {"window_size_left", "window_size_right", "scale"} <= {argument.name for argument in schema.arguments}
    specs = [find_spec(f"torch.nn.attention.{version}") for version in ("_fa3", "_fa4")]
    for spec in filter(None, specs):  # older versions lack the one or the other
        source, version = Path(spec.origin or "").read_text("utf-8"), spec.name.rpartition(".")[2]
        assert f'"{name}", _{version[1:]}' in " ".join(source.split())


def test_heads_are_filled_up_to_multiples_of_8() -> None:
    """The results are cut back."""
    tile = Tile(0, 5, 0, 5, None, 0)
    with FakeTensorMode(), Recorder() as recorder:
        q, v = (torch.empty(1, 2, 5, size, dtype=torch.float16, device="cuda") for size in (60, 20))
        out, lse = flash.forward(q, q, v, tile, SCALE, None)
        gradients = flash.backward(out, q, q, v, out, lse, tile, SCALE, None, [])
    (_, args, _), (_, back_args, _) = recorder.calls
    assert {x.shape[3] for x in (*args[:3], *back_args[:5])} == {64}
    assert [x.shape[3] for x in (out, *gradients)] == [20, 60, 60, 20]


def trimmed_tiles(largest: int) -> Iterator[Tile]:
    """Every tile up to `largest` × `largest`, away from the origin."""
    for rows, columns in ((r, c) for r in range(1, largest + 1) for c in range(1, largest + 1)):
        bounds = (None, *range(-rows, columns + 1))
        tiles = {trim(Tile(3, 3 + rows, 5, 5 + columns, low, up)) for low in bounds for up in bounds}
        yield from (tile for tile in tiles if tile)


def test_every_tile_is_a_window() -> None:
    """The operator's own definition: with R rows and C columns, row i sees [i + C - R - left, i + C - R + right]."""
    for tile in trimmed_tiles(7):
        left, right = flash.window(tile)
        rows, columns = tile.q1 - tile.q0, tile.k1 - tile.k0
        for i in range(rows):
            middle = i + columns - rows
            seen = [
                j for j in range(columns) if (left < 0 or j >= middle - left) and (right < 0 or j <= middle + right)
            ]
            assert seen == [j for j in range(columns) if tile.visible(tile.q0 + i, tile.k0 + j)], tile
            assert seen, "or the operator would return +inf"
    assert flash.window(Tile(0, 4, 0, 4, None, 0)) == CAUSAL_WINDOW
    assert flash.window(Tile(0, 4, 0, 9)) == FULL
    with pytest.raises(AssertionError, match="does not see its last column"):
        flash.window(Tile(0, 4, 0, 9, None, 0))


@pytest.mark.parametrize(
    ("tile", "window"),
    [
        (Tile(0, 9, 0, 6), FULL),
        (Tile(0, 9, 0, 9, None, 0), CAUSAL_WINDOW),
        (Tile(0, 9, 0, 9, 0, None), Window(0, -1)),
        (Tile(0, 9, 0, 12, -3, 4), Window(6, 1)),
        (Tile(0, 9, 0, 12, None, 5), Window(-1, 2)),
    ],
    ids=str,
)
def test_a_band_is_one_call(tile: Tile, window: Window) -> None:
    with FakeTensorMode(), Recorder() as recorder:
        q, k = operand(2, 9, 64, torch.bfloat16), operand(1, tile.k1, 64, torch.bfloat16)
        assert flash.cut(tile, "cuda") == (tile,)
        out, lse = flash.forward(q, k, k, tile, SCALE, None)
        gradients = flash.backward(q, q, k, k, out, lse, tile, SCALE, None, [])
    assert [x.shape for x in (out, lse, *gradients)] == [q.shape, q.shape[:3], q.shape, k.shape, k.shape]
    for _, args, kwargs in recorder.calls:
        assert kwargs == {"scale": SCALE, "window_size_left": window.left, "window_size_right": window.right}
        assert any(given is True for given in args) == (window == CAUSAL_WINDOW)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", [CAUSAL, Band.parse("window(5, 0)"), Band.parse("full")], ids=str)
def test_no_tile_of_any_rank_goes_to_the_dense_kernel(layout: str, mask: Band) -> None:
    kernel = find_kernel("flash")
    with FakeTensorMode(), Recorder() as recorder:
        for rank in range(3):
            for tile in (tile for step in make_plan(layout, mask, 40, 3, rank).steps for tile in step.tiles):
                q = operand(2, tile.q1 - tile.q0, 64, torch.bfloat16)
                k = operand(1, tile.k1 - tile.k0, 64, torch.bfloat16)
                (piece,) = kernel.cut(tile, "cuda")
                out, lse = kernel.forward(q, k, k, piece, SCALE, None)
                kernel.backward(q, q, k, k, out, lse, piece, SCALE, None, [])
    assert {name for name, _, _ in recorder.calls} == {FORWARD, BACKWARD}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 80, 96, 128])
def test_the_ops_trace(dtype: torch.dtype, size: int) -> None:
    """One node each in the graph, whose results are laid out as the operators' are.  Autograd itself aborts on CUDA
    tensors in a torch without CUDA, so that backward is called by hand."""

    def step(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, name: str) -> tuple[Tensor, ...]:
        call = ([], "causal", "", SCALE, 16, 16, "striped", "ring", "flash", name)
        out, kept = attention(q, k, v, *call)
        dq, dk, dv, _ = attention_backward(grad, [q, k, v, out, *kept], list(k.shape[1:3]), *call)
        return out, dq, dk, dv

    with fake_group(1, 2) as name, FakeTensorMode(), torch.no_grad():
        operands = [operand(heads, 8, size, dtype) for heads in (4, 2, 2, 4)]
        traced = make_fx(lambda *given: step(*given, name))(*operands)
        found = step(*operands, name)
    called = [str(node.target) for node in traced.graph.nodes if "sp." in str(node.target)]
    assert called == ["sp.attention.default", "sp.attention_backward.default"]
    for result, like in zip(found, (operands[0], *operands[:3]), strict=True):
        assert (result.shape, result.dtype, result.device.type) == (like.shape, dtype, "cuda")
        assert result.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 80, 96, 128])
def test_a_whole_model_is_planned_for_flash(dtype: torch.dtype, size: int) -> None:
    """On the meta device, as a torch without CUDA can trace no model on it: for any device whose operator would do."""
    model = Llama(LlamaConfig(layers=2, heads=4, kv_heads=2, width=4 * size)).to(dtype).to("meta")
    ids = torch.empty(1, 4096, dtype=torch.long, device="meta")
    report = sp.inspect(model, (ids,), {"labels": ids}, strategy="zigzag", world_size=8).as_dict()
    (found,) = report["attentions"]
    assert (found["kernel"], found["count"], found["heads"], found["kv_heads"]) == ("flash", 2, 4, 2)
    assert found["balance"] == 1
    assert set(found["sent_forward"]) == {7 * 512 * 2 * 2 * size * 2}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32, torch.float64])
def test_the_kernel_is_chosen_by_what_the_operator_takes(dtype: torch.dtype) -> None:
    with FakeTensorMode():
        for size in (64, 80, 96, 128, 256, 264):
            q, k = operand(4, 16, size, dtype), operand(2, 16, size, dtype)
            assert choose_kernel(q, k, k) == ("flash" if dtype in DTYPES and size <= 256 else "dense")
