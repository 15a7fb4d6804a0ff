"""Pieces are the same graph, cut: what it computes, in which order, and what its pieces share."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, fx, nn

import sp
from sp.models import GPT, Encoder, EncoderConfig, GPTConfig, Llama, LlamaConfig
from sp.passes.pieces import Pieces, block_paths, cut
from sp.pieces import assemble


class Tower(nn.Module):
    """Blocks whose connections a test chooses: `read[i]` lists the earlier values that block i adds up."""

    def __init__(self, read: Sequence[Sequence[int]], tied: bool = False) -> None:
        super().__init__()
        self.read = read
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in read)
        if tied:
            self.blocks[-1].weight = self.blocks[0].weight

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for block, read in zip(self.blocks, self.read, strict=True):
            values.append(block(sum(values[at] for at in read)).relu())
        return values[-1], self.blocks[0].get_parameter("weight")


def flat(model: nn.Module, *inputs: Tensor) -> fx.GraphModule:
    """The graph of a model as capture makes it: parameters are read, nodes know their modules."""
    return torch.export.export(model, inputs, strict=False).module(check_guards=False)


def pieces_of(parts: Pieces) -> list[str]:
    return [piece.path for piece in parts.pieces]


def compare(module: fx.GraphModule, model: nn.Module, parts: Pieces, *inputs: Tensor) -> None:
    """Values and gradients of the graph and of its pieces, bit for bit."""
    joined = assemble(parts, module, model, lambda code: code)
    found = [run(*inputs) for run in (module, joined)]
    grads = []
    for out, *_ in found:
        model.zero_grad()
        out.square().sum().backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("read", [[[0]], [[0], [1], [2]], [[0], [0, 1], [0, 1, 2]], [[0], [0], [1, 2]]], ids=str)
def test_blocks_become_pieces_that_share_code(read: list[list[int]], tied: bool) -> None:
    model, x = Tower(read, tied), torch.randn(3, 4)
    parts = cut(module := flat(model, x), [f"blocks.{at}" for at in range(len(read))])
    blocks = [piece for piece in parts.pieces if piece.path]
    assert [piece.path for piece in blocks] == [f"blocks.{at}" for at in range(len(read))]
    assert len({id(piece.code) for piece in blocks}) == 1
    assert [piece.reads[1] for piece in blocks] == [f"{piece.path}.bias" for piece in blocks]
    assert (blocks[0].reads[0] == blocks[-1].reads[0]) == (tied or len(read) == 1)
    assert parts.open == ()
    compare(module, model, parts, x)


def test_a_block_that_is_called_twice_takes_in_what_lies_between() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (self.blocks[1](self.blocks[0](self.blocks[0](x).sin().cos())),)

    model, x = Twice(), torch.randn(3, 4)
    parts = cut(module := flat(model, x), ["blocks.0", "blocks.1"])
    assert pieces_of(parts) == ["blocks.0", "blocks.1"]
    ops = [str(node.target) for node in parts.pieces[0].code.graph.nodes if node.op == "call_function"]
    assert ops == ["aten.linear.default", "aten.sin.default", "aten.cos.default", "aten.linear.default"]
    compare(module, model, parts, x)


def test_blocks_that_lie_between_each_other_stay_open() -> None:
    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> tuple[Tensor]:
            first, second, third = self.blocks
            return (third(first(second(first(x)))),)

    model, x = Crossed(), torch.randn(3, 4)
    parts = cut(module := flat(model, x), ["blocks.0", "blocks.1", "blocks.2"])
    assert parts.open == ("blocks.0", "blocks.1")
    assert pieces_of(parts) == ["", "blocks.2"]
    compare(module, model, parts, x)


def test_the_outermost_list_counts() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(4, 4)
            self.stages = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))

        def forward(self, x: Tensor) -> tuple[Tensor]:
            x = self.stem(x)
            for stage in self.stages:
                x = stage(x)
            return (x,)

    assert block_paths(flat(Nested(), torch.randn(3, 4)).graph) == ["stages.0", "stages.1"]


MODELS = {
    "gpt": lambda layers: GPT(GPTConfig(layers=layers)),
    "llama": lambda layers: Llama(LlamaConfig(layers=layers)),
    "encoder": lambda layers: Encoder(EncoderConfig(layers=layers)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_blocks_of_a_model_are_one_code(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name](3).double()
    ids = torch.randint(0, 61, (2, 19))
    parallel = sp.parallelize(model, compile=False, example_args=(ids,))
    bound = parallel.executables[0].bound
    parts = cut(bound, block_paths(bound.graph))
    blocks = [piece for piece in parts.pieces if piece.path]
    assert len(blocks) == 3
    assert len({id(piece.code) for piece in blocks}) == 1
    assert len(parts.pieces) == 5
    joined = assemble(parts, bound, model, lambda code: code)
    assert all(torch.equal(a, b) for a, b in zip(bound(ids), joined(ids), strict=True))
