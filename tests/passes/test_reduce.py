"""Averages become sums and counts, and stay the same numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.passes.normalize import Normalize
from sp.passes.reduce import Reduce
from tests.passes.programs import Small, listing, ops, program_of

X_BSD = torch.rand(2, 9, 4)
PASSES = (Normalize(), Reduce())


def labels(x: Tensor) -> Tensor:
    return (x.sum(-1) * 100).long() % 4


def weights(x: Tensor) -> Tensor:
    return (1 + torch.arange(x.shape[-1])).to(x.dtype)


def scores(x: Tensor) -> Tensor:
    return x.flatten(0, 1)


# Rewritten: averages over the sequence.
CHANGED: dict[str, Callable[..., Any]] = {
    "mean": lambda m, x: x.mean(),
    "mean over it": lambda m, x: x.mean(1),
    "mean, kept": lambda m, x: x.mean(-2, keepdim=True),
    "mean over it and others": lambda m, x: x.mean((0, 1)),
    "mean over merged dims": lambda m, x: x.flatten(0, 1).mean(0),
    "mean over no dims, which is all": lambda m, x: x.mean([]),
    "mean of a span": lambda m, x: x[:, 1:].mean(1),
    "mean of integers": lambda m, x: labels(x).to(torch.float64).mean(),
    "mean with a dtype": lambda m, x: x.mean(1, dtype=torch.float64),
    "mean of integers with a dtype": lambda m, x: labels(x).mean(dtype=torch.float32),
    "cross entropy": lambda m, x: F.cross_entropy(scores(x), labels(x).flatten()),
    "with ignored labels": lambda m, x: F.cross_entropy(scores(x), labels(x).flatten(), ignore_index=2),
    "with smoothing": lambda m, x: F.cross_entropy(scores(x), labels(x).flatten(), ignore_index=1, label_smoothing=0.1),
    "nothing but ignored labels": lambda m, x: F.cross_entropy(scores(x), labels(x).flatten() * 0, ignore_index=0),
    "classes in dim 1": lambda m, x: F.cross_entropy(x.mT, labels(x)),
    "classes that weigh": lambda m, x: F.cross_entropy(scores(x), labels(x).flatten(), weights(x)),
    "and ignored labels": lambda m, x: F.cross_entropy(x.mT, labels(x), weights(x), ignore_index=2),
    "and smoothing": lambda m, x: F.cross_entropy(x.mT, labels(x), weights(x), ignore_index=1, label_smoothing=0.1),
    "classes of no weight": lambda m, x: F.cross_entropy(scores(x), labels(x).flatten(), 0 * weights(x)),
    "a class out of range that is ignored": lambda m, x: F.cross_entropy(
        x.mT, labels(x) - 1, weights(x), ignore_index=-1
    ),
    "probabilities": lambda m, x: F.cross_entropy(scores(x), scores(x).softmax(-1)),
    "probabilities that weigh": lambda m, x: F.cross_entropy(x.mT, x.mT.softmax(1), weights(x), label_smoothing=0.2),
    "likelihoods": lambda m, x: F.nll_loss(scores(x).log_softmax(-1), labels(x).flatten(), ignore_index=3),
    "likelihoods that weigh": lambda m, x: F.nll_loss(x.mT.log_softmax(1), labels(x), weights(x)),
    "squares": lambda m, x: F.mse_loss(x, x.sin()),
    "squares, broadcast": lambda m, x: torch.ops.aten.mse_loss(x.unsqueeze(0), x.sin().expand(3, *x.shape)),
    "distances": lambda m, x: F.l1_loss(x, x.sin()) + F.smooth_l1_loss(x, x.cos()) + F.huber_loss(x, x.exp()),
    "divergence": lambda m, x: F.kl_div(x.log(), x.sin()) + F.kl_div(x, x.sin(), log_target=True),
    "divergence by batch": lambda m, x: F.kl_div(x.log(), x.sin(), reduction="batchmean"),
    "bits": lambda m, x: F.binary_cross_entropy(x, x.sin(), weights(x)),
    "bits of logits": lambda m, x: F.binary_cross_entropy_with_logits(x, x.sin(), pos_weight=weights(x)),
    "margins": lambda m, x: F.margin_ranking_loss(x, x.sin(), x) + F.soft_margin_loss(x, x.cos()),
    "hinges": lambda m, x: F.hinge_embedding_loss(x, 2 * (labels(x) % 2)[..., None].expand(x.shape) - 1),
    "counts": lambda m, x: F.poisson_nll_loss(x, x.sin()),
    "triplets": lambda m, x: F.triplet_margin_loss(x, x.sin(), x.cos()),
    "angles": lambda m, x: F.cosine_embedding_loss(scores(x), scores(x).sin(), 2 * (labels(x).flatten() % 2) - 1),
}

# Left alone: no average, or not over the sequence.
UNCHANGED: dict[str, Callable[..., Any]] = {
    "mean over features": lambda m, x: x.mean(-1),
    "mean over the batch": lambda m, x: x.mean(0),
    "sum": lambda m, x: x.sum(1),
    "summed loss": lambda m, x: F.cross_entropy(scores(x), labels(x).flatten(), reduction="sum"),
    "loss of each token": lambda m, x: F.cross_entropy(scores(x), labels(x).flatten(), reduction="none"),
    "summed squares": lambda m, x: F.mse_loss(x, x.sin(), reduction="sum"),
    "squares without the sequence": lambda m, x: F.mse_loss(x.sum(1), x.sin().sum(1)),
    "loss without the sequence": lambda m, x: F.cross_entropy(x.sum(1), labels(x).sum(1) % 4),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CHANGED)
def test_averages_stay_what_they_are(name: str, dtype: torch.dtype) -> None:
    model = Small(CHANGED[name])
    program = program_of(model, X_BSD.to(dtype), passes=PASSES)
    x = torch.rand(3, 7, 4, dtype=torch.float64).to(dtype)
    right, found = model(x), program.graph_module(x)[0]
    assert found.dtype == right.dtype == program.graph.output_node().args[0][0].meta["val"].dtype
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2}[right.dtype]
    torch.testing.assert_close(found, right, rtol=tolerance, atol=0.0, equal_nan=True)
    assert not any(name == "aten.mean" for name in ops(program))


@pytest.mark.parametrize("name", UNCHANGED)
def test_everything_else_is_left_alone(name: str) -> None:
    before = program_of(UNCHANGED[name], X_BSD, passes=PASSES[:1])
    assert str(Reduce().run(before.fork()).graph) == str(before.graph)


def test_what_it_becomes() -> None:
    def forward(m: Small, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.mean((1, 2)), F.cross_entropy(scores(x), x.new_zeros(()).long().expand(x.shape[0] * x.shape[1]))

    program = program_of(forward, X_BSD, passes=PASSES)
    lines = listing(program).splitlines()
    assert [line for line in lines if line.startswith(("sum_", "div_", "cross", "ne_", "mul"))] == [
        "sum_dim_int_list = aten.sum(inputs_0, [1, 2], False, dtype=torch.float32)",
        "mul_1 = mul(4, sym_size_int_3)",
        "div_tensor = aten.div(sum_dim_int_list, mul_1)",
        "mul = mul(sym_size_int_2, sym_size_int_3)",
        "ne_scalar = aten.ne(expand, -100)",
        "sum_default = aten.sum(ne_scalar)",
        "cross_entropy_loss_default = aten.cross_entropy_loss(flatten, expand, None, 2, -100, 0.0)",
        "div_tensor_1 = aten.div(cross_entropy_loss_default, sum_default)",
    ]
    assert program.history[-1].text == "averages over the sequence made sums and counts: mean, cross_entropy_loss"


def test_sums_of_16_bits_do_not_overflow() -> None:
    """65504 is the largest float16: 20,000 tokens of 4 each are more."""
    x = torch.full((1, 20_000, 4), 4.0, dtype=torch.float16)
    program = program_of(
        lambda m, x: (x.mean(1), F.cross_entropy(scores(x) * 0, labels(x).flatten())), x, passes=PASSES
    )
    mean, loss = program.graph_module(x)
    assert mean.dtype == loss.dtype == torch.float16
    torch.testing.assert_close(mean, torch.full_like(mean, 4.0))
    torch.testing.assert_close(loss, torch.tensor(4.0).log().half())


def test_gradients_stay_what_they_are() -> None:
    def losses(m: Small, x: Tensor) -> Tensor:
        smooth = F.cross_entropy(x.mT, labels(x), weights(x), ignore_index=1, label_smoothing=0.1)
        return F.cross_entropy(scores(x), labels(x).flatten(), ignore_index=2) + x.square().mean() + smooth

    model = Small(losses)
    x = torch.rand(2, 9, 4, dtype=torch.float64, requires_grad=True)
    program = program_of(model, x, passes=PASSES)
    (right,) = torch.autograd.grad(model(x), x)
    (found,) = torch.autograd.grad(program.graph_module(x)[0], x)
    torch.testing.assert_close(found, right, rtol=1e-12, atol=0.0)


def test_check_is_able_to_fail() -> None:
    program = program_of(lambda m, x: x.mean(), X_BSD)
    with pytest.raises(AssertionError, match=r"reduce left \[mean\]"):
        Reduce().check(program)
