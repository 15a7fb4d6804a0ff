"""Attention under masks made of data: captured in one graph, read as scores, and computed as the scores say."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sp.mask import Band
from sp.passes import preparation
from sp.passes.attention import RewriteAttention
from sp.passes.fxtools import op_name
from sp.program import Program
from sp.runtime.scores.tile import TileScore
from sp.score import Score
from tests.passes.masks import visible
from tests.passes.programs import program_of

BATCH, HEADS, WIDTH = 2, 2, 4


@dataclass(frozen=True)
class Data:
    """What a model may build masks of.  seen: bool [B, S]; lengths: int [B, 1]; documents, places: int [B, S];
    weights: float [B, S]; pairs: bool, bias: float [B, 1, S, S]; slopes: parameter [H]; table: parameter [8, H]."""

    seen: Tensor
    lengths: Tensor
    documents: Tensor
    places: Tensor
    weights: Tensor
    pairs: Tensor
    bias: Tensor
    slopes: Tensor
    table: Tensor

    @property
    def S(self) -> int:  # noqa: N802 - as in shapes
        return self.seen.shape[1]

    @property
    def i(self) -> Tensor:
        return torch.arange(self.S)[:, None]

    @property
    def j(self) -> Tensor:
        return torch.arange(self.S)[None, :]


Maker = Callable[[Data], Tensor]
INPUTS = [field.name for field in fields(Data)][:-2]


class Attentions(nn.Module):
    """One attention for each mask."""

    def __init__(self, makers: Mapping[str, Maker]) -> None:
        super().__init__()
        self.makers = makers
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.25]))
        self.table = nn.Parameter(torch.randn(8, HEADS, generator=torch.Generator().manual_seed(5)))

    def forward(self, x: Tensor, *inputs: Tensor) -> list[Tensor]:
        data = Data(*inputs, slopes=self.slopes, table=self.table)
        q = x.unflatten(2, (HEADS, WIDTH)).transpose(1, 2)
        made = [maker(data) for maker in self.makers.values()]
        made = [mask if mask.dtype == torch.bool else mask.to(x.dtype) for mask in made]
        return [F.scaled_dot_product_attention(q, q, q, attn_mask=mask) for mask in made]


def inputs(length: int, seed: int = 0) -> dict[str, Tensor]:
    """Left and right padding, documents that end anywhere and come back, positions that restart, other numbers."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    places = torch.arange(length)
    lengths = torch.randint(1, length + 1, (BATCH, 1), generator=generator)
    starts = torch.rand(BATCH, length, generator=generator) < 0.3
    first = torch.cummax(torch.where(starts, places, 0), 1).values
    pairs = torch.rand(BATCH, 1, length, length, generator=generator) < 0.6
    return {
        "x": torch.randn(BATCH, length, HEADS * WIDTH, generator=generator, dtype=torch.float64),
        "seen": torch.stack([places < lengths[0], places >= length - lengths[1]]),
        "lengths": lengths,
        "documents": torch.randint(0, 3, (BATCH, length), generator=generator),
        "places": places - first,
        "weights": torch.randn(BATCH, length, generator=generator),
        "pairs": pairs,
        "bias": torch.where(pairs, torch.randn(pairs.shape, generator=generator), -torch.inf),
    }


def rewritten(makers: Mapping[str, Maker]) -> tuple[Attentions, Program]:
    model = Attentions(makers)
    program = program_of(model, *inputs(16).values(), passes=(*preparation(), RewriteAttention()))
    return model, program


class Dense(fx.Interpreter):
    """Runs a rewritten program on one device, with every score written out."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if op_name(fx.Node(self.module.graph, "n", "call_function", target, (), {})) != "sp.attention":
            return super().call_function(target, args, kwargs)
        q, k, v, leaves, mask, text, scale = args[:7]
        score = (q * scale) @ k.mT
        if text:
            places = (torch.arange(x.shape[2]) for x in (q, k))
            score = TileScore(Score.parse(text), tuple(leaves), *places).apply(score)
        score = score.masked_fill(~visible(Band.parse(mask), q.shape[2]), -torch.inf)
        return torch.softmax(score, -1).nan_to_num(0) @ v, None


def check(makers: Mapping[str, Maker], lengths: tuple[int, ...] = (6, 7, 13)) -> dict[str, str]:
    """Each mask that is accepted is what the graph computes.  Returns what each was read as, or why it was refused."""
    model, program = rewritten(makers)
    for length in lengths:
        given = inputs(length, seed=1)
        right = model(*given.values())
        found = Dense(program.graph_module).run(*given.values())
        for name, a, b in zip(makers, found, right, strict=True):
            torch.testing.assert_close(a, b.nan_to_num(0), rtol=1e-6, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    return readings(makers, program)


def readings(makers: Mapping[str, Maker], program: Program) -> dict[str, str]:
    (output,) = program.graph.output_node().args
    return {name: _reading(node, program) for name, node in zip(makers, output, strict=True)}


def _reading(node: fx.Node, program: Program) -> str:
    if node.name in program.refused:
        return f"refused: {program.refused[node.name].why}"
    _, _, _, _, mask, text, *_ = node.args[0].args
    return f"{mask} | {text}" if text else mask
