"""Every derivative rule against autograd in float64, with operands that broadcast; then whole scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sp.layout import LAYOUTS
from sp.mask import FULL
from sp.plan import make_plan
from sp.runtime.scores import BoundScore
from sp.runtime.scores.derivatives import DERIVATIVES
from sp.runtime.scores.evaluate import evaluate
from sp.runtime.scores.gradients import sweep
from sp.runtime.scores.op_table import base_of, has_gradient, is_evaluable, names_of
from sp.score import Score

# x [2, 3, 4, 5] positive, y [1, 3, 1, 5] and z [] around 0, m a mask [2, 1, 4, 1], n an index, w a table.
CALLS = """
add.Tensor(x, y) add.Tensor(y, x, alpha=3) add.Scalar(y, 2) sub.Tensor(x, z) sub.Tensor(y, x, alpha=0.5)
rsub.Tensor(x, y) rsub.Scalar(y, 1.0, 2) subtract.Tensor(y, x) mul.Tensor(x, y) mul.Tensor(z, x) mul.Scalar(y, -3)
mul.Tensor(y, y) multiply.Tensor(x, z) div.Tensor(y, x) div.Tensor(x, y) div.Scalar(y, 4) div.Tensor(z, x)
true_divide.Tensor(y, x) div.Tensor_mode(x, y, rounding_mode='floor') div.Tensor_mode(y, x, rounding_mode=None)
neg.default(y) tanh.default(y) exp.default(y) exp2.default(y) sigmoid.default(y) log.default(x) log2.default(x)
log1p.default(x) sqrt.default(x) rsqrt.default(x) reciprocal.default(y) square.default(y) abs.default(y)
absolute.default(y) relu.default(y) pow.Tensor_Scalar(x, 1.5) pow.Tensor_Scalar(y, 3) pow.Tensor_Scalar(y, 0)
clamp.default(y, -0.3, 0.4) clamp.default(y, min=0.1) clamp.default(y, max=0.1) clamp.Tensor(x, y, z)
clamp.Tensor(x, z, y) clamp.Tensor(x, max=y) clamp_min.default(y, 0.1) clamp_min.Tensor(y, z) clamp_max.Tensor(z, y)
clamp_max.default(y, 0.2) clip.default(y, -0.1) maximum.default(y, x) minimum.default(y, z) maximum.default(x, x)
where.self(m, y, x) where.ScalarOther(m, z, 0.5) where.ScalarSelf(m, 0.5, y) masked_fill.Scalar(y, m, -inf)
masked_fill.Tensor(x, m, z) _to_copy.default(y, dtype='float64') to.dtype(y, 'float64') clone.default(y)
alias.default(x) detach.default(y) floor.default(y) ceil.default(y) trunc.default(y) round.default(y) sign.default(y)
full_like.default(y, 3.0) ones_like.default(y) zeros_like.default(y) lookup(w, n)
""".replace(", ", ",").split()


def operands() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    leaves = {"x": normal(2, 3, 4, 5).abs() + 0.1, "y": normal(1, 3, 1, 5), "z": normal(), "w": normal(6, 3)}
    index = torch.randint(-6, 6, (2, 1, 4, 5), generator=generator)
    return {**{key: x.requires_grad_() for key, x in leaves.items()}, "m": normal(2, 1, 4, 1) > 0, "n": index}


@pytest.mark.parametrize("call", CALLS)
def test_rule_is_what_autograd_finds(call: str) -> None:
    known = operands()
    score = Score.parse(f"a = {call} -> bias=a")
    values = evaluate(score, known, ["a"])
    sources = [name for name in "xyzw" if name in score.lines[0].reads]
    out = values["a"]
    grad = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    expected = [torch.zeros_like(known[name]) for name in sources]
    if out.requires_grad:
        found = torch.autograd.grad(out, [known[name] for name in sources], grad, allow_unused=True)
        expected = [zero if grad is None else grad for zero, grad in zip(expected, found, strict=True)]
    with torch.no_grad():
        swept = sweep(score, values, {"a": grad}, sources)
    assert has_gradient(score.lines[0].op)
    for name, gradient in zip(sources, expected, strict=True):
        torch.testing.assert_close(swept[name], gradient, rtol=1e-12, atol=1e-12)


def test_nothing_flows_through_integers_and_truth_values() -> None:
    known = operands()
    score = Score.parse(
        "b = _to_copy.default(y, dtype='int64'); c = gt.Scalar(z, 0); d = mul.Tensor(x, b); a = mul.Tensor(d, c)"
        " -> bias=a"
    )
    values = evaluate(score, known, ["a"])
    swept = sweep(score, values, {"a": torch.ones_like(values["a"])}, ["x", "y", "z"])
    assert swept.keys() == {"x"}
    torch.testing.assert_close(swept["x"], (values["b"] * values["c"]).expand_as(known["x"]).double())


def test_every_rule_is_tried() -> None:
    tried = {base_of(call.partition("(")[0]) for call in CALLS}
    truths = {
        op for op in DERIVATIVES if op in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "floor_divide", "sgn")
    }
    logic = {op for op in DERIVATIVES if op.startswith(("logical", "bitwise"))}
    assert set(DERIVATIVES) == tried | truths | logic


@pytest.mark.parametrize("base", DERIVATIVES)
def test_rules_name_operands_of_their_operator(base: str) -> None:
    """A misspelled operand would never be looked up."""
    packet = getattr(torch.ops.aten, base, None)
    overloads = [f"{base}.{overload}" for overload in packet.overloads()] if packet is not None else [base]
    names = {name for op in overloads if is_evaluable(op) for name in names_of(op)}
    assert set(DERIVATIVES[base]) <= names | {"other", "self"}


def test_an_operator_without_a_rule_is_known_to_have_none() -> None:
    assert not has_gradient("erf.default")
    assert is_evaluable("erf.default")
    score, x = Score.parse("a = erf.default(s) -> score=a"), torch.randn(1, 1, 2, 2)
    with pytest.raises(AssertionError, match=r"the operand 'self' of erf\.default in a score has no gradient"):
        sweep(score, evaluate(score, {"s": x}, ["a"]), {"a": x}, ["s"])


SOFTCAP = "t = div.Tensor(s, l3); u = tanh.default(t); w = mul.Tensor(u, l3)"
WHOLE = (
    "l0:table+grad l1:qk+grad l2:k+grad l3:+grad l4:q l5:k l6:+grad l7:q+grad; d = sub.Tensor(i, j);"
    f" e = clamp.default(d, 0, 3); f = lookup(l0, e); g = add.Tensor(f, l1); h = mul.Tensor(g, l2); {SOFTCAP};"
    " v = eq.Tensor(l4, l5); p = mul.Tensor(l6, l7) -> visible=v, bias=h, score=w, sink=p"
)


def leaves(length: int, keys: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = [(4, 3), (1, 3, length, keys), (2, 1, 1, keys), ()]
    floats = [torch.randn(shape, generator=generator, dtype=torch.float64) + 0.1 for shape in shapes]
    numbers = [torch.arange(total) // 5 for total in (length, keys)]
    sinks = [
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in [(1, 3, 1, 1), (1, 1, length, 1)]
    ]
    return [*floats, numbers[0].view(1, 1, -1, 1), numbers[1].view(1, 1, 1, -1), *sinks]


def written_out(x: list[Tensor], s: Tensor) -> Tensor:
    distance = (torch.arange(s.shape[2]).unsqueeze(1) - torch.arange(s.shape[3])).clamp(0, 3)
    bias = (x[0][distance].permute(2, 0, 1) + x[1]) * x[2]
    return ((s / x[3]).tanh() * x[3] + bias).masked_fill(x[4] != x[5], -torch.inf)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", [1, 3])
def test_gradients_of_all_ranks_add_up(layout: str, world: int) -> None:
    length, keys = 13, 11
    x = [leaf.requires_grad_(leaf.is_floating_point()) for leaf in leaves(length, keys)]
    s = torch.randn(2, 3, length, keys, dtype=torch.float64, requires_grad=True)
    grad, sink_grad = torch.randn_like(s), torch.randn(2, 3, length, 1, dtype=torch.float64)
    out, sink = written_out(x, s), (x[6] * x[7]).expand(2, -1, -1, -1)
    visible = out.detach() != -torch.inf
    trained = [leaf for leaf in x if leaf.requires_grad]
    loss = (out.masked_fill(~visible, 0) * grad).sum() + (sink * sink_grad).sum()
    expected = torch.autograd.grad(loss, [s, *trained])
    totals = [torch.zeros_like(leaf) for leaf in trained]
    for rank in range(world):
        plan = make_plan(layout, FULL, length, world, rank, keys)
        bound = BoundScore.bind(WHOLE, x, plan, torch.device("cpu"), block=4)
        found = bound.empty_gradients()
        rows = plan.layout.positions(length, rank, world)
        torch.testing.assert_close(bound.sink().expand(2, -1, -1, -1), sink[:, :, rows].detach())
        bound.add_sink_gradient(found, sink_grad[:, :, rows])
        for step in plan.steps:
            columns = torch.tensor(plan.layout.positions(keys, step.source, world))
            for piece in (piece for tile in step.tiles for piece in bound.against(step.source).cut(tile)):
                assert piece.score is not None
                assert piece.score.form == "function"
                cut = (slice(None), slice(None), torch.tensor(rows)[piece.tile.q0 : piece.tile.q1, None])
                cut = (*cut, columns[piece.tile.k0 : piece.tile.k1])
                torch.testing.assert_close(piece.score.apply(s[cut].detach()), out[cut].detach())
                grad_s = piece.score.gradient(s[cut].detach(), grad[cut], found)
                torch.testing.assert_close(grad_s, expected[0][cut], rtol=1e-11, atol=1e-11)
        assert [total.numel() > 0 for total in found] == [leaf.trains for leaf in bound.score.leaves]
        for total, part in zip(totals, (total for total in found if total.numel()), strict=True):
            total += part
    for total, gradient in zip(totals, expected[1:], strict=True):
        torch.testing.assert_close(total, gradient, rtol=1e-11, atol=1e-11)
