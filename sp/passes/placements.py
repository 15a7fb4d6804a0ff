"""What `place` finds out about the values of a graph, and what counts as differentiable."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

import torch
from torch import fx

from sp.passes.fxtools import op_name, result
from sp.passes.rule_table import CREATIONS
from sp.passes.rules import Ruling
from sp.program import Placement, Sharded


@dataclass
class Placements:
    """natural: how a value is computed.  local: the shard that an index-domain value has when it meets activations.
    rulings: how to compute the sharded form.  trains: depends on parameters; differentiable: on parameters or floating
    inputs, and carries a gradient to them.  unknown: computed from a refused value that nothing can be assumed of.
    moot: read by refused nodes alone, as the mask of an attention is."""

    natural: dict[fx.Node, Placement] = field(default_factory=dict[fx.Node, Placement])
    local: dict[fx.Node, Sharded] = field(default_factory=dict[fx.Node, Sharded])
    rulings: dict[fx.Node, Ruling] = field(default_factory=dict[fx.Node, Ruling])
    trains: set[fx.Node] = field(default_factory=set[fx.Node])
    differentiable: set[fx.Node] = field(default_factory=set[fx.Node])
    unknown: set[fx.Node] = field(default_factory=set[fx.Node])
    moot: Set[fx.Node] = frozenset()

    def sharded(self, node: fx.Node) -> Sharded | None:
        """The sharded form that `node` has or can have."""
        natural = self.natural.get(node)
        return natural if isinstance(natural, Sharded) else self.local.get(node)


def is_differentiable(node: fx.Node, known: Set[fx.Node]) -> bool:
    """Whether a gradient flows through this op to one of the `known` values."""
    value = result(node)
    if value is None or op_name(node) in _CONSTANT | CREATIONS:
        return False
    return carries_gradients(value) and any(operand in known for operand in node.all_input_nodes)


_CONSTANT = frozenset({"aten.detach", "sp.peak", "sp.noise"})


def carries_gradients(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()
