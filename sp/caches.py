"""Caches: the keys and values that a decoder keeps between calls, as tensors among the other inputs and outputs.

    DynamicCache(layers: k0 v0, k1 v1)     ⇄     Kept(keys=(k0, k1), values=(v0, v1))

transformers' caches are no containers that torch's pytree knows; `Kept` is one.  They are known by name: `sp` does not
import transformers.  Keys and values are [batch, heads, tokens, size]; those of a cache that a parallelized model
returned are each rank's own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import Tensor
from torch.utils import _pytree as pytree

from sp import records
from sp.errors import InputError

SEQUENCE_DIM = 2
Form = Literal["", "global", "local"]  # of an input: no part of a cache, whole, or this rank's tokens


@dataclass(frozen=True)
class Kept:
    """A cache, taken apart.  is_local: whether each rank has its own tokens."""

    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()
    is_local: bool = False

    def close(self) -> Any:
        """A cache of transformers' with these layers."""
        cache = fresh_cache()
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            cache.update(keys, values, layer)
        return cache


@dataclass(frozen=True)
class Origin:
    """Where a cache comes from of which each rank has its own tokens.

    layout, ranks: which of the job's ranks holds which token; "" and none in a world of one.
    call: a word for the calls that have made it, the same on all ranks."""

    layout: str
    ranks: tuple[int, ...]
    call: str = ""


def fresh_cache() -> Any:
    """Without layers yet.  Every layer will keep all its tokens, a windowed one too: its mask hides the others."""
    from transformers import DynamicCache  # nobody asks for a cache who has not imported it

    return DynamicCache()


def sharded_cache(kept: Kept, length: int, origin: Origin) -> Any:
    """Of each rank's own tokens of `length` in all."""
    from sp.sharded_cache import ShardedCache  # which imports transformers

    return ShardedCache(kept.keys, kept.values, length, origin)


def origin_of(cache: object) -> Origin | None:
    """None where this rank holds the whole."""
    return cast(Any, cache).origin if getattr(cache, "is_local", False) else None


def grown(cache: Any, made: Any) -> Any:
    """The cache that was passed, with what the call has `made` of it: the model itself puts new tokens into it, too.

    Its class is another one then, where this rank has its own tokens alone, as that of a module under fully_shard."""
    cache.__class__, cache.__dict__ = type(made), vars(made)
    return cache


def can_grow(cache: object) -> bool:
    """Whether it is of no class of the caller's own."""
    return type(cache).__module__ in ("transformers.cache_utils", "sp.sharded_cache")


def leave_behind(cache: Any) -> None:
    """A call has gone on from it and returned no cache.  The model itself would have put the new tokens into it: this
    one, its copies too, would be without them in the next call."""
    cache.is_left_behind = True


def is_left_behind(cache: object) -> bool:
    return getattr(cache, "is_left_behind", False)


def is_cache(value: object) -> bool:
    """Whether this is one of transformers' caches."""
    return any(
        (base.__module__, base.__name__) == ("transformers.cache_utils", "Cache") for base in type(value).__mro__
    )


def global_length(caches: Iterable[object]) -> int | None:
    """How many tokens the caches of a call hold, of the whole sequence; None if there are none, or only empty ones."""
    lengths = {length for cache in caches if (length := _length(cache, open_cache(cache)))}
    if len(lengths) > 1:
        raise InputError(f"the call passes caches of {sorted(lengths)} tokens", needed="one length")
    return next(iter(lengths), None)


def _length(cache: object, kept: Kept) -> int | None:
    found = {tensor.shape[SEQUENCE_DIM] for tensor in (*kept.keys, *kept.values)}
    if len(found) > 1:
        raise InputError(f"the layers of a cache hold {sorted(found)} tokens", needed="one length for all")
    return cast(Any, cache).length if kept.is_local else next(iter(found), None)


def caches_in(tree: object) -> Iterator[object]:
    return (leaf for leaf in pytree.tree_leaves(tree, is_leaf=is_cache) if is_cache(leaf))


def returns_its_cache(given: object, output: object) -> bool:
    """Whether there is one cache in the arguments of a call, and it is the one that comes out."""
    passed, returned = list(caches_in(given)), list(caches_in(records.opened(output)))
    return len(passed) == len(returned) == 1 and passed[0] is returned[0]


def opened(tree: Any) -> Any:
    """The same arguments or outputs with a `Kept` for each cache, and a `Record` for each dataclass."""
    tree = records.opened(tree)
    return pytree.tree_map(lambda leaf: open_cache(leaf) if is_cache(leaf) else leaf, tree, is_leaf=is_cache)


def closed(tree: Any, close: Callable[[Kept], Any] = Kept.close) -> Any:
    """The inverse of `opened`."""
    tree = pytree.tree_map(lambda leaf: close(leaf) if _is_kept(leaf) else leaf, tree, is_leaf=_is_kept)
    return records.closed(tree)


def parts(tree: object) -> list[tuple[pytree.KeyPath, Kept | None]]:
    """For each leaf of an opened tree: the path of its cache, and the cache; of a leaf in none its own, and None."""
    found: list[tuple[pytree.KeyPath, Kept | None]] = []
    for path, leaf in pytree.tree_flatten_with_path(tree, is_leaf=_is_kept)[0]:
        kept = leaf if isinstance(leaf, Kept) else None
        found += [(path, kept)] * (1 if kept is None else 2 * len(kept.keys))
    return found


def _is_kept(value: object) -> bool:
    return isinstance(value, Kept)


def open_cache(cache: Any) -> Kept:
    """Take a cache apart; InputError for what keeps something else than all keys and values of each layer."""
    given = getattr(cache, "layers", None)
    layers = [layer for layer in given or () if getattr(layer, "is_initialized", True)]
    # A windowed layer drops what is out of its window, but may become a whole one while it is empty.
    names = {type(layer).__name__ for layer in layers} - {"DynamicLayer"}
    names |= {type(layer).__name__ for layer in given or ()} - {"DynamicLayer", "DynamicSlidingWindowLayer"}
    if names or given is None:
        found = type(cache).__name__ + (f" of {sorted(names)[0]}" if names else "")
        raise InputError(
            f"the call passes or returns a {found}",
            needed="a cache that keeps all keys and values of each layer, DynamicCache()",
            remedy="pass none, and use_cache=True: sp makes one",
        )
    if layers and len(layers) < len(cache.layers):
        raise InputError("some layers of a cache are empty", needed="all layers filled, or none")
    keys, values = ([getattr(layer, name) for layer in layers] for name in ("keys", "values"))
    return Kept(tuple(keys), tuple(values), is_local=getattr(cache, "is_local", False))


def _flatten(kept: Kept) -> tuple[list[Any], Any]:
    return [kept.keys, kept.values], kept.is_local


def _flatten_with_keys(kept: Kept) -> tuple[list[tuple[Any, Any]], Any]:
    return [(pytree.GetAttrKey(name), getattr(kept, name)) for name in ("keys", "values")], kept.is_local


def _unflatten(children: Iterable[Any], is_local: Any) -> Kept:
    keys, values = children
    return Kept(keys, values, is_local)


pytree.register_pytree_node(Kept, _flatten, _unflatten, flatten_with_keys_fn=_flatten_with_keys)
