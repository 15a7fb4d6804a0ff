"""Numbers at the ends of their range: denormals, large values, scores of 1e4; and rows merged from parts whose sums of
exponentials lie far apart.  Each as exact as torch's own attention is on one device."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sp.layout import find_layout
from sp.mask import CAUSAL
from sp.runtime.ops.attention import attention
from sp.testing import run_ranks
from tests.runtime.attention_reference import SCALE, gather, make_inputs
from tests.runtime.scored import CASES, spread_and_gather

LENGTH, WORLD = 21, 3
Change = Callable[[list[Tensor]], list[Tensor]]


def largest(dtype: torch.dtype) -> float:
    """A half of it, so that a mean of two does not overflow on the way."""
    return torch.finfo(dtype).max / 2


CHANGES: dict[str, Change] = {
    "denormal queries": lambda x: [x[0] * 1e-40, *x[1:]],
    "denormal values and gradients": lambda x: [x[0], x[1], x[2] * 1e-40, x[3]],
    "scores of 1e4": lambda x: [x[0] * 1e4, *x[1:]],
    "keys far apart": lambda x: [x[0].abs(), x[1] * torch.logspace(-3, 3, LENGTH).view(1, 1, -1, 1), *x[2:]],
    "large values": lambda x: [x[0], x[1], x[2].sign() * largest(torch.bfloat16) * 1e-4, x[3] * 1e-4],
    "queries of zero": lambda x: [x[0] * 0, *x[1:]],
}


def rounding(operands: list[Tensor]) -> dict[str, float]:
    """Of one addition in float32 to each gradient, before its terms cancel: what no kernel can be asked to stay below.

    The terms of dq are weights · (grad · v - grad · out) · k."""
    q, k, v, grad = (float(x.double().norm(dim=-1).max()) for x in operands)
    step = torch.finfo(torch.float32).eps * SCALE * grad * v * operands[0][..., 0].numel() ** 0.5
    return {"out": 0.0, "dq": step * k, "dk": step * q, "dv": 0.0}


def whole(operands: list[Tensor]) -> list[Tensor]:
    q, k, v = (x.detach().requires_grad_() for x in operands[:3])
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE, enable_gqa=True)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), operands[3])]


def over_ranks(operands: list[Tensor], layout: str, kernel: str) -> list[Tensor]:
    def rank(group: dist.ProcessGroup) -> list[Tensor]:
        here = torch.tensor(find_layout(layout).positions(LENGTH, group.rank(), WORLD), dtype=torch.long)
        *qkv, grad = (x[:, :, here] for x in operands)
        q, k, v = (x.requires_grad_() for x in qkv)
        facts = (str(CAUSAL), "", SCALE, LENGTH, LENGTH, layout, "ring", kernel, group.group_name)
        out, _ = attention(q, k, v, [], *facts)
        return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]

    return gather(run_ranks(WORLD, rank), layout, LENGTH)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("change", CHANGES)
def test_as_exact_as_one_device(change: str, dtype: torch.dtype) -> None:
    operands = [x.to(dtype) for x in CHANGES[change](make_inputs(LENGTH, dtype=torch.float32))]
    right, own = whole([x.double() for x in operands]), whole(operands)
    for layout, kernel in (("striped", "flash"), ("contiguous", "flash"), ("striped", "dense")):
        for what, mine, single, exact in zip(
            ("out", "dq", "dk", "dv"), over_ranks(operands, layout, kernel), own, right, strict=True
        ):
            about = f"{what} of {layout}, {kernel}"
            assert mine.isfinite().all(), about
            least = rounding(operands)[what] + torch.finfo(dtype).eps * float(exact.norm())
            errors = [float((x.double() - exact).norm()) for x in (mine, single)]
            assert errors[0] <= 2 * errors[1] + least + torch.finfo(torch.float32).tiny, (about, errors)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_soft_caps_of_tiny_and_huge_scores(scale: float) -> None:
    """Scores far beyond the cap are flat: gradients through them vanish, and are not NaN."""
    q, *rest = make_inputs(LENGTH, dtype=torch.float32)
    operands = [q * scale, *rest]

    def run(inputs: list[Tensor], world: int) -> list[Tensor]:
        return spread_and_gather(CASES["soft cap"], inputs, "striped", "flash", world)

    right, own, found = run([x.double() for x in operands], 1), run(operands, 1), run(operands, WORLD)
    for what, mine, single, exact in zip(("out", "dq", "dk", "dv"), found, own, right, strict=True):
        errors = [float((x.double() - exact).norm()) for x in (mine, single)]
        least = rounding(operands)[what] + torch.finfo(torch.float32).eps * float(exact.norm())
        assert errors[0] <= 2 * errors[1] + least, (what, errors)
