"""torch's own layers: MultiheadAttention and the Transformer's, as they come."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sp.errors import SpError
from sp.passes import pipeline
from tests.passes.exact import check
from tests.passes.programs import program_of

WIDTH, HEADS = 12, 3
QUIET: dict[str, Any] = {"dropout": 0.0, "dtype": torch.float64}


class Calls(nn.Module):
    """`way(layer, *inputs)`."""

    def __init__(self, layer: nn.Module, way: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.way = layer, way

    def forward(self, *inputs: Tensor) -> Any:
        return self.way(self.layer, *inputs)


def attention(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **QUIET, **options})


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, **{"batch_first": True, **QUIET, **options})
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def decoder(**options: Any) -> nn.Module:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, **{"batch_first": True, **QUIET, **options})
    return nn.TransformerDecoder(layer, 1)


def causal(x: Tensor, dim: int = 1) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(x.shape[dim], dtype=x.dtype)


def states(length: int, first: bool = True) -> Tensor:
    x = torch.randn(2, length, WIDTH, dtype=torch.float64)
    return (x if first else x.transpose(0, 1).contiguous()).requires_grad_()


def padding(length: int) -> Tensor:
    """True where the second row has nothing."""
    return torch.arange(length) >= torch.tensor([[length], [length - 3]])


# The layer, how it is called, and with what for a length; sequence first where the last says so.
Case = tuple[Callable[[], nn.Module], Callable[..., Any], Callable[[int], list[Tensor]], bool]
CASES: dict[str, Case] = {
    "with weights, which nobody reads": (attention, lambda m, x: m(x, x, x)[0], lambda n: [states(n)], True),
    "without weights": (attention, lambda m, x: m(x, x, x, need_weights=False)[0], lambda n: [states(n)], True),
    "causal, with weights": (
        attention,
        lambda m, x: m(x, x, x, attn_mask=causal(x), is_causal=True)[0],
        lambda n: [states(n)],
        True,
    ),
    "causal, without": (
        attention,
        lambda m, x: m(x, x, x, attn_mask=causal(x), need_weights=False)[0],
        lambda n: [states(n)],
        True,
    ),
    "sequence first": (
        lambda: attention(batch_first=False),
        lambda m, x: m(x, x, x)[0],
        lambda n: [states(n, first=False)],
        False,
    ),
    "padding, with weights": (
        attention,
        lambda m, x, gone: m(x, x, x, key_padding_mask=gone)[0],
        lambda n: [states(n), padding(n)],
        True,
    ),
    "padding and causal": (
        attention,
        lambda m, x, gone: m(x, x, x, key_padding_mask=gone, attn_mask=causal(x) < 0)[0],
        lambda n: [states(n), padding(n)],
        True,
    ),
    "padding and causal, without weights": (
        attention,
        lambda m, x, gone: m(x, x, x, key_padding_mask=gone, attn_mask=causal(x) < 0, need_weights=False)[0],
        lambda n: [states(n), padding(n)],
        True,
    ),
    "one more key": (lambda: attention(add_bias_kv=True), lambda m, x: m(x, x, x)[0], lambda n: [states(n)], True),
    "one more key of zeros": (
        lambda: attention(add_zero_attn=True),
        lambda m, x: m(x, x, x)[0],
        lambda n: [states(n)],
        True,
    ),
    "other keys": (
        lambda: attention(kdim=WIDTH, vdim=WIDTH),
        lambda m, x, y: m(x, y, y)[0],
        lambda n: [states(n), states(n + 2)],
        True,
    ),
    "encoder": (encoder, lambda m, x: m(x), lambda n: [states(n)], True),
    "causal encoder": (encoder, lambda m, x: m(x, mask=causal(x), is_causal=True), lambda n: [states(n)], True),
    "encoder, norm first": (lambda: encoder(norm_first=True), lambda m, x: m(x), lambda n: [states(n)], True),
    "encoder, padding": (
        encoder,
        lambda m, x, gone: m(x, src_key_padding_mask=gone),
        lambda n: [states(n), padding(n)],
        True,
    ),
    "decoder": (
        decoder,
        lambda m, x, y: m(x, y, tgt_mask=causal(x), tgt_is_causal=True),
        lambda n: [states(n), states(n + 2)],
        True,
    ),
}


EVAL = ("with weights, which nobody reads", "without weights", "encoder", "encoder, padding")


@pytest.mark.parametrize(("name", "mode"), [*((name, "train") for name in CASES), *((name, "eval") for name in EVAL)])
def test_exact(name: str, mode: str) -> None:
    """In eval mode torch's fast path is for inference alone, and never taken while a model is captured."""
    build, way, inputs, first = CASES[name]
    torch.manual_seed(0)
    model = Calls(build(), way).train(mode == "train")
    program = program_of(model, *inputs(9), passes=pipeline(), sequence_dim=1 if first else 0)
    check(model, program, inputs(7))  # pyright: ignore[reportArgumentType]


def test_weights_that_are_returned() -> None:
    model = Calls(attention(), lambda m, x: m(x, x, x))
    with pytest.raises(SpError, match="its weights are read by bmm_1 and view") as refused:
        program_of(model, states(9), passes=pipeline())
    assert "need_weights=False" in str(refused.value)
