"""Refusals that no other test reads: each from the smallest model that earns it, in its own words and with its line."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.caches import open_cache
from sp.cli.steps import loss_of
from sp.layout import find_layout
from sp.mesh import _whole
from sp.runtime.shards import BoundLayout

X = torch.zeros(2, 12, 4)


class Body(nn.Module):
    """Whatever `body` makes of activations [2, S, 4]."""

    def __init__(self, body: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.body = nn.Linear(4, 4), body

    def forward(self, x: Tensor) -> Any:
        return self.body(self.linear(x))


REFUSED = {
    "it reads the same bytes as another dtype": lambda y: y.view(torch.int32),
    "it squeezes whatever dim happens to be 1": lambda y: y[:, :, :1].squeeze(),
    "which differ between ranks": lambda y: torch.histc(y, 4),
    "which both hold a sequence": lambda y: (y @ y.transpose(1, 2)).amax((1, 2)),
    "merges the sequence with other dims": lambda y: y.flatten(0, 1).argmax(0),
    "it squeezes a dim that is not surely of size 1": lambda y: y.squeeze(1),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_small_model_is_refused(why: str) -> None:
    with pytest.raises(sp.UnsupportedModelError) as caught:
        sp.inspect(Body(REFUSED[why]), (X,), world_size=2)
    (refusal, *_) = caught.value.refusals
    assert why in refusal.why
    assert "test_refusals.py" in refusal.source
    assert refusal.remedy


def test_a_model_that_differs_from_call_to_call() -> None:
    class Counts(Body):
        calls = 0

        def forward(self, x: Tensor) -> Any:
            self.calls += 1
            return super().forward(x)

    with pytest.raises(sp.UnsupportedModelError, match="the model does what one graph cannot do at every call"):
        sp.inspect(Counts(torch.relu), (X,))


def test_vmap_that_no_attention_reads() -> None:
    with pytest.raises(sp.UnsupportedModelError, match=r"the graph holds values of torch\.vmap"):
        sp.inspect(Body(torch.vmap(torch.sin)), (X,))


def test_results_written_into_an_argument() -> None:
    with pytest.raises(sp.UnsupportedModelError) as caught:
        sp.inspect(Body(lambda y: torch.sin(y.detach(), out=torch.empty_like(y))), (X,))
    assert "it writes into an argument" in str(caught.value)


def test_options_that_do_not_exist() -> None:
    model = Body(torch.relu)
    with pytest.raises(sp.StrategyError, match="outputs cannot be 'here'"):
        sp.parallelize(model, outputs="here")  # pyright: ignore[reportArgumentType]
    with pytest.raises(sp.StrategyError, match="there is no kernel 'flush'"):
        sp.parallelize(model, kernel="flush")


def test_an_estimate_that_was_not_asked_for() -> None:
    shape = sp.costs.ModelShape(layers=2, width=64, heads=4, kv_heads=4, head_width=16, mlp_width=64, vocab_size=9)
    with pytest.raises(sp.StrategyError, match="there is no estimate of 'ring'"):
        sp.estimate(shape, 4096, 8, "h100", strategies=["striped"])["ring"]


def test_what_cannot_be_checked() -> None:
    with torch.device("meta"):
        unreal = Body(torch.relu)
    with pytest.raises(sp.InputError, match="the model's parameters are on the meta device"):
        sp.check(unreal, (X,))
    held = Body(torch.relu)
    held.lines = (line for line in "ab")  # a generator has no copies
    with pytest.raises(sp.InputError, match="Body cannot be copied: "):
        sp.check(held, (X,))


def test_an_example_that_the_op_itself_refuses() -> None:
    @torch.library.custom_op("refusals::picky", mutates_args=())
    def picky(x: Tensor) -> Tensor:
        raise RuntimeError("never")

    picky.register_fake(torch.empty_like)
    with pytest.raises(sp.RuleError, match=r"an example for refusals\.picky cannot be run"):
        sp.register_rule("refusals::picky", "... -> ...", examples=[(torch.zeros(4, 4),)])


def test_local_inputs_hold_one_sequence_in_one_dim() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, other: Tensor) -> Any:
            return x + 1, other * 2

    model = sp.parallelize(Two(), inputs="local", sequence_dim={"x": 1, "other": 1})
    with pytest.raises(sp.InputError, match="inputs='local' with sequences of different lengths: "):
        model(X, X[:, :7])
    model = sp.parallelize(Two(), inputs="local", sequence_dim={"x": 1, "other": (1, 2)})
    with pytest.raises(sp.InputError, match="in which two dims hold the sequence"):
        model(X, torch.zeros(2, 12, 12))


def test_a_part_of_the_world_needs_names_for_its_axes() -> None:
    mesh: Any = SimpleNamespace(mesh_dim_names=None)
    with pytest.raises(sp.StrategyError, match="the axes of the mesh have no names, and it is a part of the world"):
        _whole(mesh, 4)


def test_bench_needs_something_to_go_down_from() -> None:
    with pytest.raises(sp.InputError, match="the model's output has no loss and does not begin with a floating tensor"):
        loss_of((torch.zeros(3, dtype=torch.int64),))


def test_a_cache_that_keeps_something_else() -> None:
    with pytest.raises(sp.InputError, match="the call passes or returns a SimpleNamespace"):
        open_cache(SimpleNamespace())


def test_a_buffer_that_trains() -> None:
    body = Body(torch.relu)
    body.register_buffer("scale", torch.ones(4, requires_grad=True))
    body.body = lambda y: y * body.scale
    with pytest.raises(sp.UnsupportedModelError, match="the model trains what is no parameter") as caught:
        sp.inspect(body, (X,))
    assert caught.value.refusals[0].node == "scale"


def test_parts_of_every_rank_have_a_length() -> None:
    layout = BoundLayout(find_layout("striped"))
    with pytest.raises(sp.InputError, match=r"the lengths of the parts are \[3, 4\]"):
        layout.to_contiguous(torch.zeros(1, 7), 1, [3, 4])
