"""Partition: which activations a compiled step keeps for its backward, and which it computes again.

torch's partitioner has a budget of memory: of what it would keep for the least time, the share that may be kept; the
rest is recomputed in backward, the cheapest per byte first (He and Yu, *Transcending runtime-memory tradeoffs in
checkpointing by being fusion aware*, MLSys 2023).  It knows nothing of ranks.  What communicates is kept here whatever
the budget says: an attention is the dearest of all, and an exchange that is repeated costs as much as the first.

Importing this module imports Inductor, which takes a second: done where a budget is asked for.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._functorch import config
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
