"""SeedNoise: dropout → a product with noise that every rank can make by itself, from one seed for each call.

    dropout = aten.dropout(x, 0.1, True)
    →
    noise = sp.noise(x, noise_seed, 0, 0.1, …)     0 or 1 / 0.9, by each element's place in the whole value
    mul   = aten.mul(x, noise)

`noise_seed` is one more input of the graph, drawn anew for every call; the third argument numbers the dropouts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import fx
from torch._guards import detect_fake_mode

from sp.passes.attention import AXIS
from sp.passes.builder import Builder
from sp.passes.fxtools import op_name, positional, shape, tensor
from sp.program import NOISE_SEED, Port, Program
from sp.runtime import ops

_DROPOUTS = frozenset({"aten.dropout", "aten.feature_dropout"})


@dataclass(frozen=True)
class SeedNoise:
    name: str = "noise"

    def run(self, program: Program) -> Program:
        dropouts = [node for node in program.graph.nodes if op_name(node) in _DROPOUTS]
        if not dropouts:
            return program.note(self.name, "no dropout is active")
        seed = _seed_input(program)
        for site, node in enumerate(dropouts):
            build = Builder(node, program)
            source, probability, _ = positional(node)
            like = cast(fx.Node, source) if op_name(node) == "aten.dropout" else _channels(cast(fx.Node, source), build)
            layout = program.strategy.layout
            noise = build(ops.noise, like, seed, site, float(cast(float, probability)), -1, 1, 0, 0, 0, layout, AXIS)
            node.replace_all_uses_with(build(torch.ops.aten.mul.Tensor, source, noise))
            program.graph.erase_node(node)
        inputs = (*program.inputs, Port(NOISE_SEED, None))
        return replace(program, inputs=inputs).note(self.name, f"{len(dropouts)} dropouts drawn from one seed")

    def check(self, program: Program) -> None:
        left = [node for node in program.graph.nodes if op_name(node) in _DROPOUTS]
        if left:
            raise AssertionError(f"noise left {left}")


def _seed_input(program: Program) -> fx.Node:
    """The last input: int64, no dims, on the CPU."""
    inputs = program.graph.find_nodes(op="placeholder")
    mode = detect_fake_mode([tensor(node) for node in inputs])
    assert mode is not None, "captured graphs hold fake tensors"
    with program.graph.inserting_after(inputs[-1]):
        seed = program.graph.placeholder(NOISE_SEED)
    with mode:
        seed.meta["val"] = torch.empty((), dtype=torch.int64)
    return seed


def _channels(source: fx.Node, build: Builder) -> fx.Node:
    """Something with one element for each channel of `source`, which is dropped as a whole."""
    sizes = [build.size(size) if dim < 2 else 1 for dim, size in enumerate(shape(source))]
    return build(torch.ops.aten.new_empty.default, source, sizes, pin_memory=False)
