"""Bind: the last step before running.  The axis name in the program → the process group of this process.

    attention = sp.attention(q, k, v, …, 'flash', 'sp')  →  sp.attention(q, k, v, …, 'flash', '0 as rank 1 of 4, ops 3')

The bound module is not a Program any more: only it knows which group, and only the ops in it ask for their rank.
"""

from __future__ import annotations

import torch
from torch import fx

from sp.passes.attention import AXIS
from sp.program import Program


def bind(program: Program, group_name: str) -> fx.GraphModule:
    """A GraphModule of its own that calls the `sp::` ops on the group called `group_name`."""
    module = program.fork().graph_module
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "sp":
            node.args = tuple(group_name if argument == AXIS else argument for argument in node.args)
    module.recompile()
    return module
