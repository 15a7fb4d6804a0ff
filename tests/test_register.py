"""`sp.register_rule`: true rules are believed after trial, all others are refused, and ranks must agree."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import sp
from sp.passes.rule_book import BOOK
from sp.passes.rules import Case, Refused, Ruling
from sp.program import Partial, Replicated


@torch.library.custom_op("sptest::scaled_norm", mutates_args=())
def scaled_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


@scaled_norm.register_fake
def _(x, weight):
    return torch.empty_like(x)


def _backward(ctx, grad):
    x, weight = ctx.saved_tensors
    with torch.enable_grad():
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    return torch.autograd.grad(y, (x, weight), grad)


scaled_norm.register_autograd(_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


@torch.library.custom_op("sptest::prefix_sum", mutates_args=())
def prefix_sum(x: Tensor) -> Tensor:
    return x.cumsum(1)


@prefix_sum.register_fake
def _(x):
    return torch.empty_like(x)


prefix_sum.register_autograd(lambda ctx, grad: grad.flip(1).cumsum(1).flip(1))


@torch.library.custom_op("sptest::fill", mutates_args=("x",))
def fill(x: Tensor) -> None:
    x.fill_(0)


RULE = "... d!, d! -> ... d"
EXAMPLE = (torch.randn(2, 8, 4), torch.rand(4))


class Normed(nn.Module):
    """A linear layer and one of the two ops."""

    def __init__(self, op: str = "scaled_norm") -> None:
        super().__init__()
        torch.manual_seed(0)  # ranks must hold the same
        self.linear, self.weight, self.op = nn.Linear(4, 4), nn.Parameter(torch.rand(4)), op

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return scaled_norm(x, self.weight) if self.op == "scaled_norm" else prefix_sum(x)


@pytest.fixture(autouse=True)
def _book_is_empty_again() -> Iterator[None]:
    yield
    assert BOOK.find("sptest.scaled_norm") is None
    assert BOOK.find("sptest.prefix_sum") is None


@pytest.mark.parametrize(
    "op",
    [
        *("sptest::scaled_norm", "sptest.scaled_norm", "sptest::scaled_norm.default"),
        *(scaled_norm, torch.ops.sptest.scaled_norm, torch.ops.sptest.scaled_norm.default),
    ],
)
def test_a_true_rule_is_tried_and_used(op):
    with pytest.raises(sp.UnsupportedModelError, match=r"no placement rule for sptest.scaled_norm(.|\n)*register_rule"):
        sp.check(Normed(), (EXAMPLE[0],), world_size=2)
    with sp.register_rule(op, RULE, examples=[EXAMPLE]) as registration:
        assert registration.tried == 2 * 3  # two dims in three layouts; the last dim is refused
        assert sp.check(Normed(), (EXAMPLE[0],), world_size=3).exact


def norm_rule(case: Case) -> Ruling:
    x, weight = case.operands
    if case.anchor is not x or case.placement.dim == len(case.node.meta["val"].shape) - 1:
        raise Refused("it normalizes over that dim", "use another")
    return Ruling(case.placement, {x: case.placement, weight: Replicated()})


def test_a_function_as_rule():
    with sp.register_rule("sptest::scaled_norm", norm_rule, examples=[EXAMPLE]) as registration:
        assert registration.tried == 6
        assert sp.check(Normed(), (EXAMPLE[0],), world_size=2).exact


def test_an_op_that_is_pointwise():
    with pytest.raises(sp.RuleError, match="is not true"):
        sp.register_rule("sptest::scaled_norm", "pointwise", examples=[EXAMPLE])


def all_whole(case: Case) -> Ruling:
    return Ruling(Partial(), {operand: Replicated() for operand in case.operands} | {case.anchor: case.placement})


@pytest.mark.parametrize(
    ("op", "rule", "example"),
    [
        ("sptest::scaled_norm", "... d, d -> ... d", EXAMPLE),
        ("sptest::scaled_norm", "... s d!, d! -> ... d", EXAMPLE),
        ("sptest::scaled_norm", all_whole, EXAMPLE),
        ("sptest::prefix_sum", "b s d -> b s d", EXAMPLE[:1]),
        ("sptest::prefix_sum", "pointwise", EXAMPLE[:1]),
    ],
)
def test_a_rule_that_is_not_true(op, rule, example):
    with pytest.raises(sp.RuleError, match=r"is not true(.|\n)*claim: (.|\n)*tried: \w+ over 3 ranks(.|\n)*found: "):
        sp.register_rule(op, rule, examples=[example])


def test_examples_are_asked_for():
    with pytest.raises(sp.RuleError, match=r"without examples(.|\n)*trusted=True"):
        sp.register_rule("sptest::prefix_sum", "b s! d -> b s d")
    with sp.register_rule("sptest::prefix_sum", "b s! d -> b s d", trusted=True) as registration:
        assert registration.tried == 0


def test_a_wrong_rule_on_trust_is_what_validation_is_for():
    with sp.register_rule("sptest::prefix_sum", "b s d -> b s d", trusted=True):
        report = sp.check(Normed("prefix_sum"), (EXAMPLE[0],), world_size=2)
    assert "output" in {row.what for row in report.rows if not row.exact}


def test_examples_that_show_nothing():
    with pytest.raises(sp.RuleError, match="do not show anything"):
        sp.register_rule("sptest::prefix_sum", "b! s! d! -> b s d", examples=[EXAMPLE[:1]])


def test_examples_that_do_not_fit():
    with pytest.raises(sp.RuleError, match=r"do not show anything(.|\n)*cannot trace(.|\n)*weight"):
        sp.register_rule("sptest::scaled_norm", RULE, examples=[(EXAMPLE[0], "weight")])
    with pytest.raises(sp.RuleError, match=r"does not fit the rule(.|\n)*has 1 dims"):
        sp.register_rule("sptest::prefix_sum", "b s d -> b s d", examples=[(torch.ones(3),)])
    with pytest.raises(
        sp.RuleError, match=r"do not show anything(.|\n)*has size S2 where the sequence of args_0 has S"
    ):
        sp.register_rule("sptest::scaled_norm", "s, s -> s", examples=[(torch.ones(12), torch.ones(9))])


def test_one_rule_for_each_op():
    with sp.register_rule("sptest::prefix_sum", "b s! d -> b s d", trusted=True) as first:
        again = sp.register_rule("sptest::prefix_sum", "b s! d -> b s d", trusted=True)
        assert again.entry.text == first.entry.text
        with pytest.raises(sp.RuleError, match=r"sptest.prefix_sum has a rule already: b s! d -> b s d(.|\n)*remove"):
            sp.register_rule("sptest::prefix_sum", "b s d -> b s d", trusted=True)
    first.remove()  # again: nothing happens
    sp.register_rule("sptest::prefix_sum", "b s d -> b s d", trusted=True).remove()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("... d, d", "cannot be read"),
        ("a -> b -> c", "cannot be read"),
        ("... d!, d! -> ... e", "'e' in the rule"),
        ("d ..., d -> d", r"'\.\.\.' in the rule"),
        ("d d, d -> d", "'d' in the rule"),
        ("... d-, d -> ... d", "'d-' in the rule"),
        ("a, b, c -> a", "has 3 operands, sptest.scaled_norm.default takes 2"),
    ],
)
def test_a_text_that_is_no_rule(text, message):
    with pytest.raises(sp.RuleError, match=message):
        sp.register_rule("sptest::scaled_norm", text, trusted=True)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("sptest::nothing", "there is no such op"),
        ("scaled_norm", "there is no such op"),
        (lambda x: x, r"is no op(.|\n)*torch.library.custom_op"),
        ("sptest::fill", "changes its operands in place"),
        ("aten::linear", "sp has a rule for aten.linear"),
    ],
)
def test_what_is_no_op_of_yours(op, message):
    with pytest.raises(sp.RuleError, match=message):
        sp.register_rule(op, "... d -> ... d", trusted=True)


def test_what_is_no_rule():
    with pytest.raises(sp.RuleError, match="3 is no rule"):
        sp.register_rule("sptest::prefix_sum", 3, trusted=True)


RULES = {"as it is": RULE, "in other words": "b s d!, d! -> b s d", "a sum": all_whole}


def on_rank_one(name: str) -> str:
    """Rank 0 has the rule, rank 1 that of this name."""
    rule = RULES.get(name if dist.get_rank() else "as it is")
    registration = sp.register_rule("sptest::scaled_norm", rule, trusted=True) if rule else None
    try:
        sp.parallelize(Normed().double(), compile=False)(torch.ones(2, 8, 4, dtype=torch.float64))
    except sp.SpError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if registration:
            registration.remove()
    return "ran"


def test_ranks_with_unlike_rules(world2):
    one, other = world2.run(on_rank_one, "no rule")
    assert one.startswith("RankMismatchError: rank 1 could not take part in this call")
    assert other.startswith("UnsupportedModelError")
    for message in world2.run(on_rank_one, "a sum"):
        assert "RankMismatchError: the ranks disagree about the program" in message
    assert world2.run(on_rank_one, "in other words") == ["ran", "ran"]
