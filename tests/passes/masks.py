"""Masks made by small functions of the length: captured in one graph, proven, and evaluated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.export import Dim, export

from sp.mask import Band
from sp.passes.index_algebra import IndexAlgebra
from sp.passes.index_rules import INDEX_RULES
from sp.passes.mask_proof import Unproven, prove_mask

MaskMaker = Callable[[int], Tensor]


@dataclass(frozen=True)
class Proof:
    """What the algebra says of one mask."""

    band: Band | None
    why: str = ""
    blamed: str = ""

    def __str__(self) -> str:
        return str(self.band) if self.band is not None else f"unproven: {self.why}"


class Masks(nn.Module):
    """Each mask, as the input's dim 0 is long."""

    def __init__(self, makers: Mapping[str, MaskMaker]) -> None:
        super().__init__()
        self.makers = makers

    def forward(self, x: Tensor) -> list[Tensor]:
        return [maker(x.shape[0]) for maker in self.makers.values()]


def captured(makers: Mapping[str, MaskMaker], least: int = 6) -> dict[str, fx.Node]:
    """The node of each mask in one graph that holds for any length."""
    shapes = ({0: Dim("S", min=least)},)
    program = export(Masks(makers), (torch.zeros(16, 0),), dynamic_shapes=shapes, strict=False)
    return dict(zip(makers, program.module(check_guards=False).graph.output_node().args[0], strict=True))


def prove(node: fx.Node, algebra: IndexAlgebra) -> Proof:
    try:
        return Proof(prove_mask(node, algebra)[0])
    except Unproven as unproven:
        return Proof(None, unproven.why, unproven.node.name)


def prove_all(makers: Mapping[str, MaskMaker], least: int = 6) -> dict[str, Proof]:
    algebra = IndexAlgebra(INDEX_RULES)
    return {name: prove(node, algebra) for name, node in captured(makers, least).items()}


def visible(band: Band, length: int) -> Tensor:
    """The band as a bool mask."""
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    left = torch.ones(length, length, dtype=torch.bool) if band.left is None else i - band.left <= j
    return left if band.right is None else left & (j <= i + band.right)


def attend(mask: Tensor, length: int) -> Tensor:
    """What an attention over `length` positions makes of a mask."""
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, 1, length, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = mask if mask.dtype == torch.bool else mask.double()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def differs(maker: MaskMaker, band: Band, length: int) -> bool:
    """Whether attention under the mask and under the band differ."""
    return not torch.allclose(attend(maker(length), length), attend(visible(band, length), length), equal_nan=True)
