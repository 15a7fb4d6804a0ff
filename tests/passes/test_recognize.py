"""Attention that is written out is found, whatever its form, and computes on ranks what it computes on one device."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sp.passes import pipeline, preparation
from sp.passes.bind import bind
from sp.passes.manager import run_passes
from sp.passes.recognize import Recognize
from sp.passes.scored import is_scored
from sp.program import Program
from sp.runtime.world import seat_name
from sp.show.naming import Naming
from sp.testing.ranks import run_ranks
from sp.testing.trial import run_whole
from tests.passes.exact import check
from tests.passes.forms import FORMS, Form, Written, future, scores
from tests.passes.programs import IDS_BS, program_of

# The one node that each becomes: query, key, value, root, score, sink, scale, and what a query gets that sees no key.
FOUND = {
    "plain": "transpose, getitem, getitem_1, matmul, matmul, None, 1.0, nan",
    "scaled before": "div, getitem, getitem_1, matmul, matmul, None, 1.0, nan",
    "divided": "transpose, getitem, getitem_1, div_1, div_1, None, 0.16666666666666666, nan",
    "causal": "transpose, getitem, getitem_1, masked_fill, mul, None, 0.5773502691896257, nan",
    "soft cap": "transpose, getitem, getitem_1, masked_fill, div, None, 0.11547005383792515, nan",
    "safe": "transpose, getitem, getitem_1, masked_fill, mul, None, 0.5773502691896257, zero",
    "sink": "transpose, getitem, getitem_2, masked_fill, mul, reshape, 0.5773502691896257, nan",
    "one key head": "transpose, getitem, getitem_1, masked_fill, mul, None, 0.5773502691896257, nan",
    "bmm": "reshape_default, reshape_default_1, reshape_default_2, mul_tensor, mul_tensor, None, 1.0, nan",
}


def written(name: str) -> Written:
    torch.manual_seed(0)
    form, kv_heads = FORMS[name]
    return Written(form, kv_heads).double()


def found(model: nn.Module) -> Program:
    return program_of(model, IDS_BS, passes=(*preparation(), Recognize()))


@pytest.mark.parametrize("name", FORMS)
def test_every_form(name: str) -> None:
    """One node for each, which computes the same; on ranks, outputs and every gradient, of uneven shards too."""
    model, ids = written(name), torch.randint(0, 11, (2, 7))
    captured = program_of(model, IDS_BS)
    recognized = run_passes(captured, (*preparation(), Recognize()))
    nodes = [node for node in recognized.graph.nodes if is_scored(node)]
    assert len(nodes) == (4 if name == "no batch" else 1)
    if name in FOUND:
        assert ", ".join(map(str, nodes[0].args)) == FOUND[name]
    *_, (out,) = run_whole(recognized.graph_module, [ids]).values()
    torch.testing.assert_close(out, model(ids))
    rest = pipeline()[len(preparation()) + 1 :]
    check(model, run_passes(recognized, rest), [ids])


@pytest.mark.parametrize("strategy", ["ring", "zigzag"])
@pytest.mark.parametrize("name", ["biased bmm", "sink", "grouped"])
def test_exact_with_other_layouts(name: str, strategy: str) -> None:
    model = written(name)
    program = program_of(model, IDS_BS, passes=pipeline(), strategy=strategy)
    for length in (9, 7):
        check(model, program, [torch.randint(0, 11, (2, length))], world=2)


def padded(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The second row of the batch sees nothing until its third position."""
    seen = torch.arange(q.shape[2]) >= torch.tensor([0, 2])[:, None, None, None]
    return scores(q, k).masked_fill(~seen | future(q), -math.inf).softmax(-1) @ v


def safely_padded(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = torch.arange(q.shape[2]) >= torch.tensor([0, 2])[:, None, None, None]
    return torch.ops.aten._safe_softmax(scores(q, k).masked_fill(~seen | future(q), -math.inf), -1) @ v


def softly_padded(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = torch.arange(q.shape[2]) >= torch.tensor([0, 2])[:, None, None, None]
    return scores(q, k).masked_fill(~seen | future(q), -1e38).softmax(-1) @ v


@pytest.mark.parametrize(("form", "nans"), [(padded, True), (safely_padded, False), (softly_padded, False)])
def test_queries_that_see_no_key(form: Form, nans: bool) -> None:
    """nan, nothing or the mean, as on one device; gradients too, but where they would all be nan."""
    torch.manual_seed(0)
    model, ids = Written(form).double(), torch.randint(0, 11, (2, 7))
    program = program_of(model, IDS_BS, passes=pipeline(), strategy="striped")
    parameters = [model.q.weight, model.kv.weight]

    def rank(group: dist.ProcessGroup) -> tuple[Tensor, ...]:
        (out,) = bind(program, seat_name(group.group_name))(ids)
        return out.detach(), *torch.autograd.grad(out.sum(), parameters)

    right = model(ids)
    assert right.isnan().any() == nans
    gradients = torch.autograd.grad(right.sum(), parameters)
    for results in run_ranks(3, rank):
        for one, other in zip(results[: 1 if nans else None], (right, *gradients), strict=False):
            torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-11, atol=1e-11)


def test_half_precision() -> None:
    """Scores in fp32 of operands in bf16: the attention gets the operands as they were."""

    def form(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
        weights = scores(q.float(), k.float()).masked_fill(future(q), -math.inf).softmax(-1, dtype=torch.float32)
        return (weights.to(v.dtype) @ v).to(m.slopes.dtype)

    program = found(Written(form))
    (node,) = [node for node in program.graph.nodes if is_scored(node)]
    assert {operand.meta["val"].dtype for operand in node.args[:3]} == {torch.bfloat16}
    assert "to.dtype" not in str([operand.target for operand in node.args[:3]])


def test_mask_over_batch_and_heads_as_one_dim() -> None:
    """As MultiheadAttention makes it: [B * H, S, S], viewed as [B, H, S, S]."""

    def form(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, _, length, _ = q.shape
        rows = torch.zeros(batch, 4, 1, 1, dtype=q.dtype).expand(-1, -1, 1, length).reshape(-1, 1, length)
        mask = torch.zeros(length, length, dtype=q.dtype).masked_fill(future(q), -math.inf)[None] + rows
        return nn.functional.scaled_dot_product_attention(q, k, v, mask.view(batch, 4, length, length))

    model = Written(form).double()
    program = program_of(model, IDS_BS, passes=pipeline())
    check(model, program, [torch.randint(0, 11, (2, 7))])


def test_history() -> None:
    program = found(written("repeated"))
    assert Naming(program).text(program.history[-1].text) == "1 attention found that is written out"
