"""Partition: which activations a compiled step keeps for its backward, and which it computes again.

torch's partitioner has a budget of memory: of what it would keep for the least time, the share that may be kept; the
rest is recomputed in backward, the cheapest per byte first (He and Yu, *Transcending runtime-memory tradeoffs in
checkpointing by being fusion aware*, MLSys 2023).  Two things it does not know are marked here, to be kept whatever the
budget says:

* What communicates: an attention is the dearest of all, and an exchange that is repeated costs as much as the first.
* What is alive across an attention, as the residual stream is.  Else backward would begin by recomputing all blocks
  from the embedding on, and hold them all; so it recomputes from one attention to the next.

Importing this module imports Inductor, which takes a second: done where a budget is asked for.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files
from torch.utils.checkpoint import CheckpointPolicy

from sp.runtime.ops.order import COMMUNICATING

LEAST = 1e-6  # torch takes 0 for "keep the inputs alone", whatever is marked


class Partition(CustomPartitionerFn):
    """budget: 0 keeps as little as it can, 1 is torch's default, which recomputes only what costs no time."""

    def __init__(self, budget: float) -> None:
        self.budget = budget

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        keep_what_communicates(gm.graph)
        keep_across_attentions(gm.graph)
        with config.patch(activation_memory_budget=max(self.budget, LEAST)):
            return min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)

    def uuid(self) -> Any:
        """Compiled code is found by it in the caches on disk."""
        return get_hash_for_files((__file__,), f"{self.budget} {COMMUNICATING}")


def keep_what_communicates(graph: fx.Graph) -> None:
    """Mark the results of every op that communicates: to be saved, never recomputed."""
    ours = {getattr(torch.ops.sp, name).default for name in COMMUNICATING}
    for node in graph.nodes:
        source = node.args[0] if node.target is operator.getitem else node
        if isinstance(source, fx.Node) and source.target in ours:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def keep_across_attentions(graph: fx.Graph) -> None:
    """Mark what forward makes before an attention and reads after it; of a view, what it shows."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    backward = _of_tangents(graph)
    fences = [order[node] for node in graph.nodes if node.target is torch.ops.sp.attention.default]
    for node in graph.nodes:
        readers = [order[user] for user in node.users if user not in backward and user.op != "output"]
        made = node.op == "call_function" and node not in backward
        if made and any(order[node] < fence < max(readers, default=0) for fence in fences):
            _base(node).meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _of_tangents(graph: fx.Graph) -> set[fx.Node]:
    """What depends on the gradients that come in: backward."""
    found = {node for node in graph.find_nodes(op="placeholder") if "tangents" in str(node.target)}
    for node in graph.nodes:
        if any(operand in found for operand in node.all_input_nodes):
            found.add(node)
    return found


def _base(node: fx.Node) -> fx.Node:
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        node = node.all_input_nodes[0]
    return node
