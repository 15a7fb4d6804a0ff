"""What the cost model knows of a model: the sizes of a decoder."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

from sp.errors import InputError


class Config(Protocol):
    """Whatever has these sizes, as `sp.models.LlamaConfig` has."""

    @property
    def layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_width(self) -> int: ...
    @property
    def mlp_width(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True)
class ModelShape:
    """A decoder of `layers` equal blocks: attention and a gated MLP (three matrices of width × mlp_width).

    heads, kv_heads: of queries, and of keys and values.  item_bytes: of one number of the activations.

        llama_8b = sp.costs.ModelShape(layers=32, width=4096, heads=32, kv_heads=8, head_width=128,
                                       mlp_width=14336, vocab_size=128256)

    Raises InputError for sizes that no model has."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int
    vocab_size: int
    item_bytes: int = 2

    def __post_init__(self) -> None:
        small = [field.name for field in fields(self) if getattr(self, field.name) < (field.name in _PRESENT)]
        if small:
            found = f"a model whose {small[0]} is {getattr(self, small[0])}"
            raise InputError(found, needed="positive sizes; mlp_width and vocab_size may be 0")
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} heads share {self.kv_heads} kv_heads", needed="heads that divide evenly")

    @staticmethod
    def of(config: Config, item_bytes: int = 2) -> ModelShape:
        """The sizes of a configuration: `ModelShape.of(model.config)` for `sp.models.Llama`."""
        attention = (config.layers, config.width, config.heads, config.kv_heads, config.head_width)
        return ModelShape(*attention, config.mlp_width, config.vocab_size, item_bytes)

    @property
    def block_parameters(self) -> int:
        """Of the matrices of all blocks."""
        projections = 2 * self.width * self.head_width * (self.heads + self.kv_heads)
        return self.layers * (projections + 3 * self.width * self.mlp_width)

    @property
    def parameters(self) -> int:
        """With the embedding and the head, which are two matrices."""
        return self.block_parameters + 2 * self.vocab_size * self.width

    @property
    def dense_flops(self) -> int:
        """Of one token, forward, but for attention itself.  Backward takes twice as many."""
        return 2 * (self.block_parameters + self.vocab_size * self.width)

    @property
    def pair_flops(self) -> int:
        """Of one pair of query and key, all heads of one layer, forward: q·k and p·v.  Backward: 2.5 times as many."""
        return 4 * self.heads * self.head_width

    @property
    def sum_bytes(self) -> int:
        """Of one number of a sum over tiles."""
        return max(self.item_bytes, 4)

    @property
    def kv_width(self) -> int:
        """Numbers of keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_width

    def activation_bytes(self, recompute: bool = False) -> int:
        """What backward needs of one token, all layers; logits and their log-softmax too.

        A block keeps the inputs of its two norms and what these return, q, k, v, the attention's output and the log of
        its sums, gate, up, the activation of gate and its product with up.  recompute: its input and what attention
        keeps; the rest is there for one block at a time."""
        heads = 2 * self.heads * self.head_width + self.kv_width
        kept = self.item_bytes * (self.width + heads) + self.sum_bytes * self.heads
        rest = self.item_bytes * (3 * self.width + 4 * self.mlp_width)
        logits = self.vocab_size * (self.item_bytes + self.sum_bytes)
        return self.layers * kept + (1 if recompute else self.layers) * rest + logits


_PRESENT = {"layers", "width", "heads", "kv_heads", "head_width", "item_bytes"}
