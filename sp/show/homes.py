"""Homes: which call of which module each node belongs to.

    linear_7     ('blocks', '1@0', 'attention@0', 'q@0')       the first call of block 1
    replicate_9  ('blocks', '1@0', 'attention@0', 'q@0')       nobody else reads it
    cos_1        ('rotary@0',)

`@` marks a component that was called, with the number of the call: a module called twice has two homes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from torch import fx

from sp.passes.fxtools import op_name

Home = tuple[str, ...]


def find_homes(graph: fx.Graph) -> dict[fx.Node, Home]:
    """The home of every node.  What no module's forward made lives with its readers, where they live together."""
    homes: dict[fx.Node, Home] = {}
    for node in reversed(graph.nodes):
        stack = node.meta.get("nn_module_stack") if node.op == "call_function" else None
        # An unshard was made from a value's metadata, but belongs to the output.
        recorded = _home(stack) if stack and op_name(node) != "sp.unshard" else None
        homes[node] = _common_start([homes[user] for user in node.users]) if recorded is None else recorded
    return homes


def _home(stack: Mapping[str, tuple[str, Any]]) -> Home | None:
    """None where the stack names no module, as for nodes that torch's own passes made."""
    home: list[str] = []
    around = ""
    for key, (path, _) in stack.items():
        relative = path.removeprefix(f"{around}.") if around else path
        if relative and not key.startswith("_empty"):
            *containers, called = relative.split(".")
            home += [*containers, f"{called}@{key.partition('@')[2] or 0}"]
            around = path
    return tuple(home[1:]) if home else None  # the first one is the model


def _common_start(homes: Sequence[Home]) -> Home:
    columns = zip(*homes, strict=False)
    return tuple(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))


def plain_path(home: Home) -> str:
    """`blocks.1.attention`, without the numbers of calls."""
    return ".".join(component.partition("@")[0] for component in home)


def instance_at(home: Home, depth: int) -> int | None:
    """Where, at or behind `depth`, the next called component of a home stands."""
    return next((at for at in range(depth, len(home)) if "@" in home[at]), None)


def family_of(home: Home, at: int) -> Home:
    """What the siblings of a called component share: the numbered children of one list, or the calls of one module."""
    name = home[at].partition("@")[0]
    return (*home[:at], "*" if name.isdigit() else name)
