"""ShardedCache: transformers' cache, of which each rank has its own tokens.

Importing this file imports transformers; nobody does before a model has returned one of its caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sp.errors import SpError


class ShardedCache(DynamicCache):
    """What a parallelized model returns for `use_cache=True`, and takes again to go on.

    `layers[i].keys` and `.values` are this rank's tokens of the whole, [batch, heads, local tokens, size], as
    `pmodel.layout` deals `length` of them.  What works on rows of the batch (beam search reorders them) works here.
    origin: the `sp.caches.Origin` by which a model knows whether it deals tokens alike."""

    is_local = True

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor], length: int, origin: object) -> None:
        super().__init__()
        self.length, self.origin = length, origin
        for layer_keys, layer_values in zip(keys, values, strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(layer_keys, layer_values)
            layer.keys, layer.values = layer_keys, layer_values
            self.layers.append(layer)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many tokens all ranks together hold."""
        del layer_idx
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """As `DynamicCache` would say of the whole."""
        del layer_idx
        return self.length + query_length, 0

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Only the parallelized model can: which rank gets a new token depends on how many there are."""
        del args, kwargs
        raise SpError(
            "a cache of which each rank has its own tokens is passed to the model itself",
            needed="the parallelized model",
            remedy="gather the cache, with outputs={'past_key_values': 'global'} (as the model calls it)",
        )

    def crop(self, tokens_to_remove: int) -> None:
        """Tokens at the end belong to several ranks."""
        del tokens_to_remove
        raise SpError(
            "tokens cannot be taken off a cache of which each rank has its own (assisted decoding does)",
            remedy="generate without an assistant",
        )
