"""Records: dataclasses among the arguments and outputs of a model, as containers that torch's pytree knows.

    Output(logits=tensor, note="x")     ⇄     Record(Output, {"logits": tensor, "note": "x"})

Only those that nobody has registered with the pytree, as transformers does its own.  A record is rebuilt from its
fields as they are: neither its `__init__` nor its `__post_init__` runs again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Record:
    """kind: the dataclass.  fields: by name, in their order."""

    kind: type
    fields: dict[str, Any]

    def close(self) -> Any:
        made = object.__new__(self.kind)
        for name, value in self.fields.items():
            object.__setattr__(made, name, value)  # of frozen ones, too
        return made


def opened(tree: Any) -> Any:
    """The same containers with a `Record` for each dataclass that no pytree knows."""
    return pytree.tree_map(lambda leaf: Record(type(leaf), _fields(leaf)) if _is_unknown(leaf) else leaf, tree)


def closed(tree: Any) -> Any:
    """The inverse of `opened`; records in records, too."""

    def close(leaf: Any) -> Any:
        return Record(leaf.kind, closed(leaf.fields)).close() if isinstance(leaf, Record) else leaf

    return pytree.tree_map(close, tree, is_leaf=lambda value: isinstance(value, Record))


def _is_unknown(leaf: object) -> bool:
    """A leaf that is a dataclass, and nothing besides its fields."""
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return False
    names = {field.name for field in dataclasses.fields(leaf)}
    return set(getattr(leaf, "__dict__", names)) <= names and all(hasattr(leaf, name) for name in names)


def _fields(leaf: Any) -> dict[str, Any]:
    return {field.name: opened(getattr(leaf, field.name)) for field in dataclasses.fields(leaf)}


def _flatten(record: Record) -> tuple[list[Any], Any]:
    return list(record.fields.values()), (record.kind, tuple(record.fields))


def _flatten_with_keys(record: Record) -> tuple[list[tuple[Any, Any]], Any]:
    values, context = _flatten(record)
    return [(pytree.GetAttrKey(name), value) for name, value in zip(record.fields, values, strict=True)], context


def _unflatten(children: Iterable[Any], context: Any) -> Record:
    kind, names = context
    return Record(kind, dict(zip(names, children, strict=True)))


pytree.register_pytree_node(Record, _flatten, _unflatten, flatten_with_keys_fn=_flatten_with_keys)
