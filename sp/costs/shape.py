"""What the cost model knows of a model: the sizes of a decoder."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sp.costs.workload import Attending, AttentionShape, Workload
from sp.errors import InputError
from sp.mask import CAUSAL, FULL


@dataclass(frozen=True)
class ModelShape:
    """A decoder of `layers` equal blocks: attention and a gated MLP (three matrices of width × mlp_width).

    heads, kv_heads: of queries, and of keys and values.  item_bytes: of one number of the activations.

        >>> llama_8b = sp.costs.ModelShape(
        ...     layers=32, width=4096, heads=32, kv_heads=8, head_width=128, mlp_width=14336, vocab_size=128256
        ... )
        >>> llama_8b.parameters, llama_8b.block_parameters
        (8029995008, 6979321856)
        >>> llama_8b.attention.kv_width, llama_8b.dense_flops > llama_8b.parameters
        (2048, True)
        >>> llama_8b.activation_bytes(recompute=True) < llama_8b.activation_bytes()
        True
        >>> llama_8b.workload(65_536).length
        65536
        >>> sp.costs.ModelShape.of(sp.models.LlamaConfig(layers=3)).layers  # or a configuration of transformers
        3

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
    def of(config: object, item_bytes: int = 2) -> ModelShape:
        """The sizes of a configuration, of `sp.models.Llama` or of a decoder like it of transformers.

        Raises InputError where a size has neither of the names that they use."""
        found = {name: _size(config, names) for name, names in _NAMES.items()}
        missing = [name for name, size in found.items() if size is None and name not in _DERIVED]
        if missing:
            needed = " or ".join(f"config.{name}" for name in _NAMES[missing[0]])
            kind = type(config).__name__
            raise InputError(
                f"a {kind} says nothing of {missing[0]}", needed=needed, remedy="give ModelShape its sizes"
            )
        sizes = {name: size for name, size in found.items() if size is not None}
        derived = {"kv_heads": sizes["heads"], "head_width": sizes["width"] // max(1, sizes["heads"])}
        return ModelShape(**{**derived, **sizes}, item_bytes=item_bytes)

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
    def attention(self) -> AttentionShape:
        """Of one layer."""
        return AttentionShape(self.heads, self.kv_heads, self.head_width, self.head_width, self.item_bytes)

    def workload(self, length: int, *, causal: bool = True, recompute: bool = False) -> Workload:
        """One training step on one sequence; see `sp.estimate`."""
        attending = Attending(self.attention, CAUSAL if causal else FULL, length, length, self.layers)
        size = f"{self.layers} layers of width {self.width:,}, {self.parameters / 1e9:.1f} billion parameters"
        return Workload(
            size,
            length,
            (attending,),
            token_flops=self.dense_flops,
            token_bytes=self.activation_bytes(recompute),
            state_bytes=2 * self.parameters * self.item_bytes,
            repeats=4 if recompute else 3,
            parameters=self.parameters,
            block_bytes=self.item_bytes * max(self.block_parameters // self.layers, self.vocab_size * self.width),
        )

    def activation_bytes(self, recompute: bool = False) -> int:
        """What backward needs of one token, all layers; logits and their log-softmax too.

        A block keeps the inputs of its two norms and what these return, q, k, v, the attention's output and the log of
        its sums, gate, up, the activation of gate and its product with up.  recompute: its input and what attention
        keeps; the rest is there for one block at a time."""
        attention = self.attention
        heads = 2 * self.heads * self.head_width + attention.kv_width
        kept = self.item_bytes * (self.width + heads) + attention.sum_bytes * self.heads
        rest = self.item_bytes * (3 * self.width + 4 * self.mlp_width)
        logits = self.vocab_size * (self.item_bytes + attention.sum_bytes)
        return self.layers * kept + (1 if recompute else self.layers) * rest + logits


_PRESENT = {"layers", "width", "heads", "kv_heads", "head_width", "item_bytes"}
_NAMES = {
    "layers": ("layers", "num_hidden_layers"),
    "width": ("width", "hidden_size"),
    "heads": ("heads", "num_attention_heads"),
    "kv_heads": ("kv_heads", "num_key_value_heads"),
    "head_width": ("head_width", "head_dim"),
    "mlp_width": ("mlp_width", "intermediate_size"),
    "vocab_size": ("vocab_size",),
}
_DERIVED = {"kv_heads", "head_width"}  # from heads and width, where a configuration has no other


def _size(config: object, names: tuple[str, ...]) -> int | None:
    """The first of `names` that `config` has; None where it has none, or has None there."""
    found = (getattr(config, name, None) for name in names)
    return next((size for size in found if size is not None), None)
