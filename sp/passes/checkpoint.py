"""Checkpoint: parts of a graph keep what they read, and compute the rest again in backward.

    norm   = aten.rms_norm(x, …)       checkpoint 0          region_0 = region_0(norm_weight, q_weight, …, x)
    …                                                   →    add_1    = region_0[0]
    add_1  = aten.add(add, linear_6)   checkpoint 0          …
    norm_1 = aten.rms_norm(add_1, …)

Regions are what the model itself runs under `torch.utils.checkpoint` (`saved_tensors`), or every block.  A region runs
under torch's own checkpoint again: eagerly, in a piece of a sharded model, and in compiled code, where torch's
partitioner does it.  What communicates, attentions before all, is kept, so that backward repeats none of it (selective
checkpointing, as in Korthikanti et al., *Reducing activation recomputation in large transformer models*, 2022).
Noise of dropout is a function of a seed and comes out the same.
"""

from __future__ import annotations

import operator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_arg
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from sp.passes.fxtools import attribute, module_path, op_name, result
from sp.passes.pieces import around, block_paths, make_piece, ordered
from sp.passes.saved_tensors import checkpoint_of, put_into_checkpoint
from sp.program import Program
from sp.runtime.ops.order import COMMUNICATING


class Region(nn.Module):
    """Calls `code`, which takes and returns what a piece does, and keeps what it is given and what communicates."""

    def __init__(self, code: fx.GraphModule) -> None:
        super().__init__()
        self.code = code

    def forward(self, *values: Any) -> Any:
        return checkpoint(self.code, *values, use_reentrant=False, context_fn=_keep_what_communicates)


def _keep_what_communicates() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return create_selective_checkpoint_contexts([getattr(torch.ops.sp, name).default for name in COMMUNICATING])


def marked(program: Program, every_block: bool) -> Program:
    """The program with its checkpoints as they shall be: of every block if so asked, else the model's own.

    Marks and a line of history are all that changes."""
    paths = block_paths(program.graph) if every_block else []
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    for node in calls:
        if block := around(module_path(node), paths):
            put_into_checkpoint(node, block)
    names = list(dict.fromkeys(filter(None, map(_owner, calls))))
    if not names:
        return program
    which = " … ".join(dict.fromkeys((names[0], names[-1])))
    return program.note("checkpoint", f"computed again in backward, but for what communicates: {len(names)}, {which}")


def with_regions(module: fx.GraphModule) -> fx.GraphModule:
    """A module over the same parameters that calls a `Region` for each checkpoint; `module` itself if it has none."""
    owners = {node: _owner(node) for node in module.graph.nodes if node.op == "call_function"}
    if not any(owners.values()):
        return module
    given = [node for node in module.graph.nodes if node.op in ("placeholder", "get_attr")]
    held = {str(node.target): attribute(node) for node in given if node.op == "get_attr"}
    graph, regions = fx.Graph(), dict[str, Region]()
    values = {node: graph.node_copy(node) for node in given}
    read = {str(node.target): values[node] for node in given}
    for name, nodes in ordered(module.graph, owners):
        if not name:
            for node in nodes:  # each reads what the ones before have made
                values[node] = graph.node_copy(node, values.__getitem__)
            continue
        piece, inputs, results = make_piece(name, nodes)
        operands = *(read[target] for target in piece.reads), *(values[node] for node in inputs)
        called = graph.call_module(f"region_{len(regions)}", operands)
        regions[str(called.target)] = Region(piece.code)
        values |= {node: graph.call_function(operator.getitem, (called, at)) for at, node in enumerate(results)}
    graph.output(map_arg(module.graph.output_node().args[0], values.__getitem__))
    return fx.GraphModule({**held, **regions}, graph)


def _owner(node: fx.Node) -> str:
    """Sizes are no activations, and what gathers an output for the caller is not the block's."""
    gathers = op_name(node) == "sp.unshard" and all(user.op == "output" for user in node.users)
    return "" if gathers or result(node) is None else checkpoint_of(node)
