"""The oracle: what it says of rules that are right, and that it catches rules that are not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sp.models import GPT, GPTConfig, Llama, LlamaConfig
from sp.passes import preparation, rule_table
from sp.passes.attention import RewriteAttention
from sp.passes.call import Call
from sp.passes.capture import capture
from sp.passes.manager import run_passes
from sp.passes.reduce import Reduce
from sp.passes.rules import Case, Rule, Ruling, by_pattern, pointwise, unary
from sp.program import Partial, Replicated
from sp.strategy import find_strategy
from sp.testing.oracle import WrongRuleError, check_program, check_rule

X_BSD = torch.rand(2, 8, 4)
W_ED, BIAS_E = torch.rand(5, 4).double(), torch.rand(5).double()


def test_exact() -> None:
    verdict = check_rule(nn.Linear(4, 5), (X_BSD,))
    assert verdict.exact
    assert str(verdict) == "exact: sharded(dim 1)"
    assert verdict.tried == {"aten.linear": 3}  # layouts


def test_refused() -> None:
    verdict = check_rule(lambda x: (x.flip(1) + 1, x + 1), (X_BSD,))
    assert not verdict.exact
    assert verdict.results["1"] == "sharded(dim 1)"
    assert verdict.results["0"].startswith("refused: flip")
    assert str(verdict) == (
        "refused: flip: aten.flip(args_0, [1]): it needs dim 1 of args_0 whole, and the sequence lives there "
        "(args_0 is sharded(dim 1))"
    )


def test_what_cannot_be_captured_is_refused() -> None:
    verdict = check_rule(lambda x: x + 1 if x.sum() > 0 else x, (X_BSD,))
    assert "torch.export cannot trace" in str(verdict)


def test_module_and_examples_stay_as_they_are() -> None:
    linear, example = nn.Linear(4, 5), X_BSD.clone()
    check_rule(linear, (X_BSD,))
    assert linear.weight.dtype == torch.float32
    assert torch.equal(example, X_BSD)


def test_lengths_outside_of_the_capture() -> None:
    with pytest.raises(ValueError, match=r"none of the lengths \[2\] is within 3 … ∞"):
        check_rule(lambda x: x[:, 1:], (X_BSD,), lengths=(2,))


@pytest.mark.parametrize("world", [1, 2, 5, 11])
def test_any_world(world: int) -> None:
    assert check_rule(lambda x: x[:, 1:].flatten(0, 1), (X_BSD,), world=world).exact


def shift(case: Case) -> Ruling:
    """A slice that begins one position too late."""
    right = rule_table.SHAPES["slice"](case)
    return replace(right, output=replace(right.output, start=right.output.start + 1, length=right.output.length))


def unchanged(case: Case) -> Ruling:
    return unary(case, case.placement)


def partial(case: Case) -> Ruling:
    return unary(case, Partial())


def without_arguments(name: str) -> Rule:
    return lambda case: replace(rule_table.SHAPES[name](case), arguments={})


def without_outer(name: str) -> Rule:
    def rule(case: Case) -> Ruling:
        right = rule_table.SHAPES[name](case)
        return replace(right, output=replace(right.output, outer=right.output.outer / right.output.outer))

    return rule


def all_others_replicated(case: Case) -> Ruling:
    return Ruling(case.placement, {**dict.fromkeys(case.operands, Replicated()), case.anchor: case.placement})


def dim_unchanged(case: Case) -> Ruling:
    return replace(pointwise(case), output=case.placement)


# Op, a wrong rule for it, a call that shows it.
PLANTED: list[tuple[str, Rule, Callable[..., Any], dict[str, Any]]] = [
    (
        "linear",
        by_pattern("... k, n k, n -> ... n"),
        lambda x: F.linear(x, torch.ones(5, x.shape[2]).double(), BIAS_E),
        {"sequence_dim": 2},
    ),
    ("_softmax", unchanged, lambda x: torch._softmax(x, 1, False), {}),
    ("cumsum", unchanged, lambda x: x.cumsum(1), {}),
    ("layer_norm", unchanged, lambda x: F.layer_norm(x, x.shape[1:]), {}),
    ("transpose", unchanged, lambda x: x.transpose(1, 2), {}),
    ("flatten", without_outer("flatten"), lambda x: x.flatten(0, 1), {}),
    ("view", without_outer("view"), lambda x: x.view(-1, 4), {}),
    ("view", without_arguments("view"), lambda x: x.view(x.shape[0] * x.shape[1], 4), {}),
    ("expand", without_arguments("expand"), lambda x: x.expand(3, *x.shape), {}),
    ("slice", shift, lambda x: x[:, 1:], {}),
    ("slice", unchanged, lambda x: x[:, :-1], {}),
    ("flip", unchanged, lambda x: x.flip(1), {}),
    ("cat", unchanged, lambda x: torch.cat([x, x], 1), {}),
    ("pad", unchanged, lambda x: F.pad(x, (0, 0, 1, 0)), {}),
    ("sum", unchanged, lambda x: x.sum(1, keepdim=True), {}),
    ("sum", partial, lambda x: x.sum(2), {}),
    ("log_softmax", partial, lambda x: x.log_softmax(2), {}),
    ("unbind", unchanged, lambda x: x.unbind(1), {"sequence_dim": 2}),
    ("mul", all_others_replicated, lambda x: x * torch.arange(x.shape[1])[:, None], {}),
    ("add", dim_unchanged, lambda x: x + torch.ones(3, 2, 1, 4), {}),
]


@pytest.mark.parametrize(("op", "rule", "call", "where"), PLANTED)
def test_planted_wrong_rule_is_caught(
    op: str, rule: Rule, call: Callable[..., Any], where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rule_table.TABLE, f"aten.{op}", rule)  # type: ignore[arg-type]
    with pytest.raises(WrongRuleError, match=rf"aten\.{op}\("):
        check_rule(call, (X_BSD,), **where)


def test_rule_that_forgets_an_operand_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rule_table.TABLE, "aten.mul", lambda case: unary(case, case.placement))  # type: ignore[arg-type]
    verdict = check_rule(lambda x: x * BIAS_E[:4], (X_BSD,))
    assert "its rule does not say what slice_1 must be" in str(verdict)


def test_wrong_gradient_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values are right; the gradient of the table is scaled by how often an index occurs on one rank."""
    monkeypatch.setitem(rule_table.TABLE, "aten.embedding", by_pattern("n! d!, ... -> ... d"))  # type: ignore[arg-type]

    def call(ids: Tensor) -> Tensor:
        return F.embedding(ids, W_ED, scale_grad_by_freq=True)

    with pytest.raises(WrongRuleError, match="the gradient of"):
        check_rule(call, (torch.randint(0, 5, (2, 8)),))


def test_the_error_shows_claim_and_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rule_table.TABLE, "aten.cumsum", unchanged)  # type: ignore[arg-type]
    with pytest.raises(WrongRuleError) as caught:
        check_rule(lambda x: x.cumsum(1), (X_BSD,), layouts=("zigzag",), lengths=(7,))
    text = str(caught.value)
    assert "cumsum: aten.cumsum(args_0, 1)" in text
    assert "claim: args_0 sharded(dim 1) → sharded(dim 1)" in text
    assert "tried: zigzag over 3 ranks" in text
    assert "found: result 0: Tensor-likes are not close!" in text
    assert "Greatest absolute difference" in text


MODELS = {
    "gpt": lambda: GPT(GPTConfig(layers=1, heads=2, width=8, max_length=32, vocab_size=11)),
    "llama": lambda: Llama(LlamaConfig(layers=1, heads=4, kv_heads=2, width=16, vocab_size=11, gqa="repeat_kv")),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_ruling_in_a_model(name: str) -> None:
    model = MODELS[name]().double()
    ids = torch.randint(0, 11, (2, 11))
    call, tensors = Call.of(model, (ids,), {"labels": ids})
    captured, _ = capture(model, call, tensors, sequence_dim=1, strategy=find_strategy("striped"))
    program = run_passes(captured, (*preparation(), RewriteAttention(), Reduce()))
    verdict = check_program(program, (ids, ids))
    assert str(verdict) == "exact: sharded(dim 1), replicated"
    assert verdict.tried["aten.linear"] >= 3 * 4
    assert verdict.tried["aten.cross_entropy_loss"] == 3
