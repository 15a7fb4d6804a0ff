"""Where torch.export stumbles over a minimum, as torch before 2.13 does, what it writes down instead is proven."""

import operator
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

import sp
from sp.models import GPT, GPTConfig
from sp.passes import export
from sp.passes.assertions import prove_assertions
from sp.passes.fxtools import shape
from sp.testing.compare import errors_between, run_once

SIZE = "  - Not all values of S = L['tensors'][0].size()[1] in the specified range"
GUARD = f"{SIZE} satisfy the generated guard min(4*S, 8*S)"
IDS = torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def stumbling(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.export as it was: it traces with assertions, or not at all."""
    trace = export._trace

    def stumble(flat: nn.Module, inputs: Sequence[Tensor], shapes: object, asserting: bool) -> ExportedProgram:
        if not asserting:
            raise RuntimeError(f"Constraints violated (S)!\n{GUARD} == (4*S).")
        return trace(flat, inputs, shapes, asserting)

    monkeypatch.setattr(export, "_trace", stumble)


def test_a_graph_keeps_no_assertion_and_its_range_is_the_same() -> None:
    """Of a model with 64 positions, whose loss shifts: it needs three tokens, so that two are left."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=61, max_length=64, layers=1, heads=2, width=16)).double()
    parallel = sp.parallelize(model, compile=False)
    found, right = (run_once(each, (IDS,), {"labels": IDS}) for each in (parallel, model))
    assert errors_between(found, right).within(1e-11)
    captured = parallel.executables[0].captured
    assert not captured.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    assert (captured.sequence.shortest, captured.sequence.longest) == (3, 64)


class Branching(nn.Module):
    """Does something else from a certain length on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.shape[1] < 16 else self.linear(x).relu()


def test_what_holds_for_some_lengths_is_captured_for_these() -> None:
    torch.manual_seed(0)
    model = Branching().double()
    parallel = sp.parallelize(model, compile=False)
    for length in (12, 20, 15, 16):
        x = torch.randn(2, length, 4, dtype=torch.float64)
        torch.testing.assert_close(parallel(x), model(x))
    assert [(each.captured.sequence.shortest, each.captured.sequence.longest) for each in parallel.executables] == [
        (2, 15),
        (16, None),
    ]


class Parity(Branching):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.shape[1] % 2 else self.linear(x).relu()


def test_what_is_no_range_is_refused() -> None:
    with pytest.raises(sp.UnsupportedModelError) as caught:
        sp.parallelize(Parity(), compile=False)(torch.randn(2, 12, 4))
    assert "one graph of Parity does not hold for sequences or caches of every length" in str(caught.value)
    assert "not proven: " in str(caught.value)


class HiddenWrite(Branching):
    """Changes what is kept for backward where autograd does not see it."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        with torch.no_grad():
            h[:, 0] = 0
        return h * h


def test_what_writes_stays_in_the_graph_when_assertions_go() -> None:
    with pytest.raises(sp.UnsupportedModelError, match="behind autograd's back"):
        sp.parallelize(HiddenWrite(), compile=False)(torch.randn(2, 12, 4))


def test_squares_of_a_length_are_compared() -> None:
    """Of strides, as torch 2.12 asserts them of `(x @ x.mT).flatten(0, 1)`: min(4*S**2, S**2) == S**2."""
    exported = torch.export.export(nn.Identity(), (torch.zeros(2, 12),), dynamic_shapes=({1: torch.export.Dim("S")},))
    module = exported.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    graph, (x,) = module.graph, module.graph.find_nodes(op="placeholder")
    with graph.inserting_before(graph.output_node()):
        square = graph.call_function(operator.pow, (graph.call_function(torch.ops.aten.sym_size.int, (x, 1)), 2))
        least = graph.call_function(torch.sym_min, (graph.call_function(operator.mul, (4, square)), square))
        claim = graph.call_function(operator.eq, (least, square))
        graph.call_function(torch.ops.aten._assert_scalar.default, (claim, "not proven"))
    prove_assertions(module, {shape(x)[1]: 2}, "Identity")
    assert not graph.find_nodes(op="call_function", target=operator.pow)
