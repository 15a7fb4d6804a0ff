"""NaN and infinities: over ranks, NaN is where a query sees one, and nowhere that plain attention has none.

Plain attention multiplies what it hides by zero, and 0 · NaN is NaN: how far that spreads is an accident of its blocks
(torch's MATH backend: to all rows of the head).  So two bounds hold what is promised:

    what each row has that looks at nothing but the keys it sees  ⊆  over ranks  ⊆  torch's MATH backend

and where neither has NaN, the numbers are right.  A row whose scores are all -inf is one that sees nothing.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sp.layout import find_layout
from sp.mask import CAUSAL, FULL, Band
from sp.plan import Tile
from sp.runtime.kernels import KERNELS
from sp.runtime.merge import Accumulator
from sp.runtime.ops.attention import attention
from sp.testing import run_ranks
from tests.runtime.attention_reference import SCALE, gather, make_inputs, visible

NAN, INF = torch.nan, torch.inf
LENGTH = 7
HEADS, GROUPS = 2, 1
MASKS = (CAUSAL, Band(2, 0), FULL)
WAYS = [("striped", "ring"), ("contiguous", "ring"), ("contiguous", "alltoall"), ("zigzag", "allgather")]
DOCUMENTS = torch.tensor([0, 0, 0, 1, 1, 1, 1])
PADDING = torch.tensor([False, False, True, True, True, True, True])
SCORES = {
    "": [],
    "l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a": [DOCUMENTS.view(1, 1, -1, 1), DOCUMENTS.view(1, 1, 1, -1)],
    "l0:k -> visible=l0": [PADDING.view(1, 1, 1, -1)],
}


def seen(mask: Band, score: str) -> Tensor:
    """[S, S]"""
    found = visible(mask, LENGTH)
    if "eq" in score:
        return found & (DOCUMENTS[:, None] == DOCUMENTS)
    return found & PADDING if score else found


def inputs() -> Iterator[tuple[str, list[Tensor]]]:
    """q, k, v and the gradient of the output, one value at one token of them strange; and keys that hide themselves."""
    plain = make_inputs(LENGTH, HEADS, GROUPS, size=4, batch=1, dtype=torch.float32)
    for (which, name), value in itertools.product(enumerate(("q", "k", "v", "gradient")), (NAN, INF, -INF)):
        strange = [x.clone() for x in plain]
        strange[which][0, 0, 3, 1] = value
        yield f"{name} {value}", strange
    for name, tokens in {"one": [3], "some": [2, 3, 4], "all": range(LENGTH)}.items():
        hiding = [plain[0].abs(), plain[1].abs(), *(x.clone() for x in plain[2:])]
        hiding[1][0, 0, list(tokens), 1] = -INF
        yield f"{name} scores -inf", hiding


def least(given: list[Tensor], seen_SS: Tensor) -> list[Tensor]:
    """out, dq, dk, dv in float64 where each row looks at what it sees alone; one of nothing but -inf is 0."""
    q, k, v, grad = (x.detach().double().requires_grad_() for x in given)
    rows: list[Tensor] = []
    for head, row in itertools.product(range(HEADS), range(LENGTH)):
        keys, values = (x[0, head * GROUPS // HEADS][seen_SS[row]] for x in (k, v))
        scores = keys @ q[0, head, row] * SCALE
        nothing = bool((scores == -INF).all())
        rows.append(torch.zeros(v.shape[3]).double() if nothing else scores.softmax(0) @ values)
    out = torch.stack(rows).view(grad.shape)
    if not out.requires_grad:
        return [out, *(torch.zeros_like(x) for x in (q, k, v))]
    found = torch.autograd.grad(out, (q, k, v), grad, allow_unused=True)
    return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip((q, k, v), found, strict=True))]


def most(given: list[Tensor], seen_SS: Tensor) -> list[Tensor]:
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v, seen_SS, scale=SCALE, enable_gqa=True)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), given[3])]


def over_ranks(
    world: int, layout: str, transport: str, jobs: list[tuple[list[Tensor], str, str, str]]
) -> list[list[Tensor]]:
    """out, dq, dk, dv of each job: inputs, mask, score, kernel."""

    def rank(group: dist.ProcessGroup) -> list[list[Tensor]]:
        here = torch.tensor(find_layout(layout).positions(LENGTH, group.rank(), world), dtype=torch.long)
        found: list[list[Tensor]] = []
        for given, mask, score, kernel in jobs:
            *qkv, grad = (x[:, :, here] for x in given)
            q, k, v = (x.requires_grad_() for x in qkv)
            facts = (mask, score, SCALE, LENGTH, LENGTH, layout, transport, kernel, group.group_name)
            out, _ = attention(q, k, v, SCORES[score], *facts)
            found.append([out.detach(), *torch.autograd.grad(out, (q, k, v), grad)])
        return found

    parts = run_ranks(world, rank)
    return [gather(list(of_job), layout, LENGTH) for of_job in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Case:
    """least, most: bounds of what out, dq, dk and dv may be."""

    about: str
    given: list[Tensor]
    mask: Band
    score: str
    least: list[Tensor]
    most: list[Tensor]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    masks = [(mask, "") for mask in MASKS] + [(CAUSAL, score) for score in SCORES if score]
    made: list[Case] = []
    for (name, given), (mask, score) in itertools.product(inputs(), masks):
        seen_SS = seen(mask, score)
        about = f"{name}, {mask}, {score}"
        made.append(Case(about, given, mask, score, least(given, seen_SS), most(given, seen_SS)))
    return made


@pytest.mark.parametrize("world", [3, *(pytest.param(world, marks=pytest.mark.slow) for world in (2, 4, LENGTH))])
@pytest.mark.parametrize(("layout", "transport"), WAYS, ids=str)
def test_nan_is_where_it_is_seen_and_spreads_no_further_than_on_one_device(
    world: int, layout: str, transport: str, cases: list[Case]
) -> None:
    jobs = [(case.given, str(case.mask), case.score, kernel) for kernel, case in itertools.product(KERNELS, cases)]
    found = over_ranks(world, layout, transport, jobs)
    for (kernel, case), results in zip(itertools.product(KERNELS, cases), found, strict=True):
        for what, mine, low, high in zip(("out", "dq", "dk", "dv"), results, case.least, case.most, strict=True):
            about = f"{what} of {kernel}, {case.about}"
            assert not (~mine.isfinite() & low.isfinite() & high.isfinite()).any(), f"spread: {about}"
            assert not (mine.isfinite() & ~low.isfinite()).any(), f"hidden: {about}"
            both = mine.isfinite() & low.isfinite()
            torch.testing.assert_close(mine[both].double(), low[both], rtol=1e-4, atol=1e-5, msg=about)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tile", [Tile(0, 20, 0, 20, None, 0), Tile(0, 20, 0, 3), Tile(0, 20, 0, 22, -3, 4)], ids=str)
def test_a_row_of_scores_that_are_all_minus_infinity_weighs_nothing(
    kernel: str, dtype: torch.dtype, tile: Tile
) -> None:
    """And one of NaN is NaN: torch's operator on CPU says 0 and a logsumexp of 0 of both."""
    q, k, v = torch.rand(1, 2, 20, 8).to(dtype), torch.rand(1, 2, tile.k1, 8).to(dtype), torch.rand(1, 2, tile.k1, 8)
    strange = q.clone()
    strange[0, 0, 4], strange[0, 1, 11] = -INF, NAN
    found = KERNELS[kernel].forward
    for piece in KERNELS[kernel].cut(tile, "cpu"):
        rows, columns = slice(piece.q0, piece.q1), slice(piece.k0, piece.k1)
        operands = (k[:, :, columns], v[:, :, columns].to(dtype), piece, 0.3, None)
        out, lse = found(strange[:, :, rows], *operands)
        right, right_lse = found(q[:, :, rows], *operands)
        for head, row, value in ((0, 4, 0.0), (1, 11, NAN)):
            if row in range(piece.q0, piece.q1):
                at = row - piece.q0
                assert out[0, head, at].isnan().all() if value else (out[0, head, at] == 0).all()
                assert lse[0, head, at].isnan() if value else lse[0, head, at] == -INF
                right[0, head, at], right_lse[0, head, at] = value, value or -INF
        torch.testing.assert_close(out, right, equal_nan=True)
        torch.testing.assert_close(lse, right_lse, equal_nan=True)


def test_a_query_of_zeros_that_sees_one_value_of_zeros_is_no_row_of_nothing() -> None:
    """Its logsumexp is 0 in truth: as padding has it whose embedding is zero."""
    zeros = torch.zeros(1, 1, 1, 8)
    for kernel in KERNELS.values():
        out, lse = kernel.forward(zeros, torch.rand(1, 1, 1, 8), zeros, Tile(0, 1, 0, 1), 0.3, None)
        assert (out == 0).all()
        assert (lse == 0).all()


@pytest.mark.parametrize("strange", [NAN, INF])
@pytest.mark.parametrize("first", [True, False])
def test_a_merge_keeps_what_is_not_a_number(strange: float, first: bool) -> None:
    """Of a sink that is NaN, whose value is 0, too."""
    q = torch.zeros(1, 1, 3, 2)
    parts = [torch.full((1, 1, 3), value) for value in ((strange, 1.0) if first else (1.0, strange))]
    total, sunk = Accumulator(q, 2), Accumulator(q, 2)
    for lse in parts:
        total.merge(0, 3, torch.ones(1, 1, 3, 2).mul(NAN if lse[0, 0, 0] == strange == INF else 1.0), lse)
    sunk.merge(0, 3, torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3))
    sunk.add_sink(torch.full((1, 1, 1, 1), NAN))
    assert total.finish()[0].isnan().all()
    assert sunk.finish()[0].isnan().all()
