"""Every kind of mask, on every layout and world, at lengths that divide and that do not: outputs and all gradients."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from sp.passes import pipeline
from sp.strategy import STRATEGIES
from tests.passes.exact import check
from tests.passes.programs import program_of
from tests.passes.scores import Attentions, inputs
from tests.passes.test_score_read import READ

GRID = [(each.name, world) for each in STRATEGIES.values() if not each.axes for world in (2, 3, 4)]
FAST = [("striped", 3), ("zigzag", 2), ("ring", 4)]


def masks_of(count: int) -> dict[str, torch.Tensor]:
    given = inputs(count)
    for name in ("x", "bias"):
        given[name] = given[name].double().requires_grad_()
    return given


@pytest.mark.parametrize(
    ("strategy", "world"), [pytest.param(*case, marks=[] if case in FAST else pytest.mark.slow) for case in GRID]
)
def test_every_mask(strategy: str, world: int) -> None:
    model = Attentions({name: maker for name, (_, maker) in READ.items()}).double()
    program = program_of(model, *masks_of(16).values(), passes=pipeline(), strategy=strategy)
    assert len(program.attentions) == len(READ)
    # FlashAttention's own gradients are wrong by a factor in rows that see nothing but keys hidden by finfo.min.
    with sdpa_kernel(SDPBackend.MATH):
        for length in (12, 13):
            check(model, program, list(masks_of(length).values()), world)
