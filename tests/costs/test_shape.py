"""Shapes: against the reference model, against configurations of others, and by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import sp
from sp.costs import ModelShape
from sp.models import LlamaConfig

SHAPE = ModelShape(
    layers=32, width=4096, heads=32, kv_heads=8, head_width=128, mlp_width=14336, vocab_size=128256
)  # Llama 3 8B
THEIRS = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


def test_memory_of_activations_by_hand() -> None:
    """One layer of width 8, 2 heads of 4 and 1 of keys, MLP 16, 10 words, 2 bytes."""
    shape = ModelShape(1, 8, 2, 1, 4, 16, 10)
    block = 2 * (4 * 8 + 2 * 8 + 8 + 4 * 16) + 4 * 2
    assert shape.activation_bytes() == block + 10 * (2 + 4)
    assert replace(shape, layers=3).activation_bytes() == 3 * block + 60
    assert replace(shape, layers=3).activation_bytes(recompute=True) == 3 * (2 * (8 + 24) + 8) + 2 * (24 + 64) + 60


def test_parameters_are_those_of_the_reference_model() -> None:
    config = LlamaConfig(layers=3)
    shape, model = ModelShape.of(config), sp.models.Llama(config)
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    assert shape.parameters == matrices
    assert shape.dense_flops == 2 * (matrices - config.vocab_size * config.width)


def test_configurations_of_transformers() -> None:
    assert ModelShape.of(SimpleNamespace(**THEIRS)) == SHAPE
    assert ModelShape.of(SimpleNamespace(**{**THEIRS, "head_dim": 64}), 4) == replace(
        SHAPE, head_width=64, item_bytes=4
    )
    plain = SimpleNamespace(
        **{name: size for name, size in THEIRS.items() if name not in ("num_key_value_heads", "head_dim")}
    )
    assert ModelShape.of(plain) == replace(SHAPE, kv_heads=32)


def test_a_configuration_without_a_size() -> None:
    config = SimpleNamespace(**{**THEIRS, "intermediate_size": None})
    with pytest.raises(sp.InputError, match="a SimpleNamespace says nothing of mlp_width") as error:
        ModelShape.of(config)
    assert "needed: config.mlp_width or config.intermediate_size" in str(error.value)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": 0}, "a model whose layers is 0"),
        ({"mlp_width": -1}, "a model whose mlp_width is -1"),
        ({"kv_heads": 5}, "32 heads share 5 kv_heads"),
    ],
)
def test_sizes_that_no_model_has(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(sp.InputError, match=message):
        replace(SHAPE, **sizes)
