"""Capture: every trap that torch.export sets, each with a test."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from sp.errors import InputError, UnsupportedModelError
from sp.models import GPT, GPTConfig
from sp.passes.call import Call, Outputs
from sp.passes.capture import LENGTH_CARRIER, SequenceDim, accepts, capture
from sp.passes.fxtools import is_parameter, op_name, shape
from sp.program import Port, Program
from sp.strategy import find_strategy
from tests.passes.programs import Small, ops

IDS_BS = torch.randint(0, 11, (2, 9))


def captured(
    model: nn.Module | Callable[..., Any], *args: Any, sequence_dim: SequenceDim = 1, **kwargs: Any
) -> Program:
    return both(model, args, kwargs, sequence_dim)[0]


def both(
    model: nn.Module | Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any],
    sequence_dim: SequenceDim = 1,
    **options: Any,
) -> tuple[Program, Outputs]:
    model = model if isinstance(model, nn.Module) else Small(model)
    call, tensors = Call.of(model, args, kwargs)
    return capture(model, call, tensors, sequence_dim=sequence_dim, strategy=find_strategy("ring"), **options)


def run(program: Program, *inputs: Tensor) -> list[Tensor]:
    return list(program.graph_module(*inputs))


class Shifted(nn.Module):
    """What of `labels` and what of `ids` it reads can be told from the result."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return input_ids * 100 + labels


def test_the_same_tensor_as_two_inputs() -> None:
    program = captured(Shifted(), IDS_BS, labels=IDS_BS)
    assert [port.name for port in program.inputs] == ["input_ids", "labels"]
    ids, labels = torch.full((3, 5), 2), torch.full((3, 5), 7)
    assert torch.equal(run(program, ids, labels)[0], torch.full((3, 5), 207))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.e.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.e(ids))


def test_tied_weights_stay_tied_and_train() -> None:
    model = Tied()
    program = captured(model, IDS_BS)
    held = {id(p) for p in program.graph_module.parameters()}
    assert held == {id(model.e.weight)}
    run(program, IDS_BS)[0].square().sum().backward()
    found = model.e.weight.grad.clone()
    model.zero_grad()
    model(IDS_BS).square().sum().backward()
    torch.testing.assert_close(found, model.e.weight.grad)


def test_parameters_are_the_models_own() -> None:
    model = Small(lambda m, ids: m.l(m.e(ids)) + m.p[: ids.shape[1]])
    program = captured(model, IDS_BS)
    assert {id(p) for p in program.graph_module.parameters()} == {id(p) for p in model.parameters()}
    assert sum(is_parameter(node) for node in program.graph.nodes) == 4


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_is_baked_in(mode: bool) -> None:
    model = Small(lambda m, ids: F.dropout(m.e(ids), 0.5, m.training)).train(mode)
    (dropout,) = [node for node in captured(model, IDS_BS).graph.nodes if op_name(node) == "aten.dropout"]
    assert dropout.args[2] is mode


class Output(NamedTuple):
    logits: Tensor
    loss: Tensor | None
    kind: str


def test_output_classes_come_back() -> None:
    program, outputs = both(lambda m, ids: Output(m.e(ids), None, "plain"), (IDS_BS,), {})
    again = outputs.rebuild(run(program, IDS_BS))
    assert isinstance(again, Output)
    assert again.loss is None
    assert again.kind == "plain"
    assert [port.name for port in program.outputs] == ["logits"]


def test_unknown_output_class() -> None:
    class Bag: ...

    with pytest.raises(UnsupportedModelError, match="the model returns a Bag as '1'"):
        captured(lambda m, ids: (m.e(ids), Bag()), IDS_BS)


def test_a_size_as_output_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="the model returns a SymInt as '1'"):
        captured(lambda m, ids: (m.e(ids), ids.shape[1]), IDS_BS)


def test_any_batch_and_any_length() -> None:
    model = Small(lambda m, ids: m.l(m.e(ids)).view(ids.shape[0] * ids.shape[1], 4))
    program = captured(model, IDS_BS)
    for size in ((2, 9), (5, 3), (3, 30)):
        ids = torch.randint(0, 11, size)
        torch.testing.assert_close(run(program, ids)[0], model(ids))


def test_batch_and_length_that_coincide() -> None:
    """Two symbols, though both were 9."""
    program = captured(lambda m, ids: m.e(ids), torch.zeros(9, 9, dtype=torch.long))
    (ids,) = program.graph.find_nodes(op="placeholder")
    assert shape(ids)[0] != shape(ids)[1] == program.sequence.symbol


def asks_for_the_batch(m: Small, ids: Tensor) -> Tensor:
    return m.e(ids) * (1 if ids.shape[0] == 1 else 2)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_batch_of_one_is_captured_as_such(batch: int) -> None:
    model = Small(asks_for_the_batch)
    ids = torch.zeros(batch, 9, dtype=torch.long)
    program = captured(model, ids)
    torch.testing.assert_close(run(program, ids)[0], model(ids))
    assert accepts(program, [torch.zeros(batch, 20, dtype=torch.long)])
    assert accepts(program, [torch.zeros(3, 20, dtype=torch.long)]) == (batch == 2)


def test_a_batch_that_the_model_fixes() -> None:
    program = captured(lambda m, ids: m.e(ids) + torch.ones(3, 1, 4), torch.zeros(3, 9, dtype=torch.long))
    assert accepts(program, [torch.zeros(3, 5, dtype=torch.long)])
    assert not accepts(program, [torch.zeros(2, 5, dtype=torch.long)])


def test_sequence_first() -> None:
    model = Small(lambda m, ids: m.l(m.e(ids)).sum(0))
    program = captured(model, torch.zeros(9, 2, dtype=torch.long), sequence_dim=0)
    assert program.inputs == (Port("inputs_0", 0),)
    ids = torch.randint(0, 11, (4, 3))
    torch.testing.assert_close(run(program, ids)[0], model(ids))


def test_without_batch() -> None:
    """[S, D]: D is no batch, though it is the first dim that is not the sequence's."""
    model = Small(lambda m, x: m.l(x))
    program = captured(model, torch.zeros(9, 4), sequence_dim=0)
    x = torch.randn(5, 4)
    torch.testing.assert_close(run(program, x)[0], model(x))


@pytest.mark.parametrize(
    ("sequence_dim", "dims"),
    [
        (1, [1, 1, None]),
        (-1, [1, 2, None]),
        ({"a": 1, "b": 1}, [1, 1, None]),
        ({"a": -1, "b": -2}, [1, 1, None]),
    ],
)
def test_sequence_dim(sequence_dim: SequenceDim, dims: list[int | None]) -> None:
    """By number for every input that has that dim, or by name."""

    def forward(m: Small, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a.sum() + b.sum() + c

    program = captured(
        forward, a=torch.zeros(2, 9), b=torch.zeros(2, 9, 9), c=torch.tensor(2.0), sequence_dim=sequence_dim
    )
    assert [port.dim for port in program.inputs] == dims


@pytest.mark.parametrize(
    ("inputs", "sequence_dim", "message"),
    [
        ({"a": (2,)}, 1, "no input has a sequence dim"),
        ({"a": (2, 9)}, {}, "no input has a sequence dim"),
        ({"a": (2, 9)}, {"a": 2}, "sequence_dim 2 of 'a' is out of range for shape (2, 9)"),
        ({"a": (2, 9)}, {"b": 1}, "sequence_dim names ['b'], which this call does not pass"),
    ],
)
def test_inputs_that_do_not_fit(inputs: dict[str, Any], sequence_dim: SequenceDim, message: str) -> None:
    with pytest.raises(InputError) as caught:
        captured(lambda m, a, b=None: a, sequence_dim=sequence_dim, **{k: torch.zeros(v) for k, v in inputs.items()})
    assert message in str(caught.value)


def test_lengths_that_must_not_differ() -> None:
    with pytest.raises(InputError) as caught:
        captured(lambda m, a, b: a + b, sequence_dim=1, a=torch.zeros(2, 9), b=torch.zeros(2, 8))
    text = str(caught.value)
    assert "the inputs hold sequences of different lengths (a [2, 9], b [2, 8]), and so torch.export cannot" in text
    assert "remedy: pass inputs of one length" in text


def test_several_sequences() -> None:
    """Inputs of one length share a sequence; others have one of their own, with a range of its own."""
    tensors = {"a": torch.zeros(2, 9), "b": torch.zeros(2, 6), "c": torch.zeros(2, 9), "d": torch.zeros(2, 1)}
    program = captured(lambda m, a, b, c, d: (a + c + d).sum(1) + b[:, 2:].sum(1), sequence_dim=1, **tensors)
    assert [(one.shortest, one.longest) for one in program.sequences] == [(2, None), (4, None)]
    assert [port.dim for port in program.inputs] == [1, 1, 1, None]
    S, S2 = (one.symbol for one in program.sequences)
    for size in (S, S - 1, S + 3, S + S2, 2 * S + 1):
        assert program.is_length(size), size
    for size in (S * S2, S // 2, 3 - S, S / 2, sympy.Integer(4), sympy.Symbol("B", integer=True) * S):
        assert not program.is_length(size), size


RANGES: dict[str, tuple[int, int | None, Callable[..., Any]]] = {
    "any": (2, None, lambda m, ids: m.e(ids)),
    "a slice": (3, None, lambda m, ids: m.e(ids)[:, 1:]),
    "the last five": (6, None, lambda m, ids: m.e(ids)[:, -5:]),
    "a table of 32": (2, 32, lambda m, ids: m.e(ids) + m.p[: ids.shape[1]]),
    "a table looked up": (2, None, lambda m, ids: m.e(ids) + F.embedding(torch.arange(ids.shape[1]), m.p)),
    "a buffer of 16 × 16": (2, 15, lambda m, ids: torch.ones(16, 16)[: ids.shape[1], : ids.shape[1]] @ m.e(ids)),
    "pad and slice": (2, None, lambda m, ids: F.pad(ids, (0, 1))[:, 1:]),
}


@pytest.mark.parametrize("name", RANGES)
def test_range_of_lengths(name: str) -> None:
    shortest, longest, forward = RANGES[name]
    model = Small(forward)
    program = captured(model, IDS_BS)
    assert (program.sequence.shortest, program.sequence.longest) == (shortest, longest)
    for length in (shortest, min(longest or 40, 30)):
        ids = torch.randint(0, 11, (2, length))
        torch.testing.assert_close(run(program, ids)[0], model(ids))


def test_a_length_outside_of_the_range() -> None:
    with pytest.raises(InputError) as caught:
        captured(lambda m, ids: m.e(ids)[:, -5:], IDS_BS[:, :5])
    assert "one graph of Small does not hold for a sequence of 5 tokens\n  needed: 6 … ∞ tokens" in str(caught.value)


def test_a_single_token() -> None:
    with pytest.raises(InputError, match="does not hold for a sequence of 1 tokens\n  needed: 2 … ∞ tokens"):
        captured(lambda m, ids: m.e(ids), IDS_BS[:, :1])


def test_a_length_beyond_the_model() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot trace GPT"):
        captured(GPT(GPTConfig(layers=1, heads=1, width=4, max_length=8)), torch.zeros(2, 9, dtype=torch.long))


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "fixed length": (lambda m, ids: m.e(ids) + torch.ones(9, 1), "Small fixes its sequence length at 9"),
    "features along the sequence": (
        lambda m, ids: F.linear(m.e(ids).mT, torch.ones(3, 9)),
        "Small fixes its sequence length at 9",
    ),
    "asserted": (lambda m, ids: m.e(ids) if ids.shape[1] == 9 else 1 / 0, "Small fixes its sequence length at 9"),
    "blocks of 3": (
        lambda m, ids: m.e(ids).view(2, ids.shape[1] // 3, 3, 4),
        "Small takes only some lengths: S = 3*_S",
    ),
    "if on contents": (lambda m, ids: m.e(ids) if ids.sum() > 3 else 2 * m.e(ids), "GuardOnDataDependentSymNode"),
    "int of contents": (lambda m, ids: m.e(ids)[: int(ids.max())], "cannot trace Small"),
    "its own error": (lambda m, ids: m.e(ids) @ m.e(ids), "RuntimeError: "),
    "half of the length": (
        lambda m, ids: m.e(ids)[:, -(ids.shape[1] // 2) :],
        "torch.export finds no range of sequence lengths for which one graph of Small holds",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    forward, message = REFUSED[name]
    with pytest.raises(UnsupportedModelError) as caught:
        captured(forward, IDS_BS)
    assert message in str(caught.value)
    assert "remedy:" in str(caught.value)


def _fake_tensors_take_float_ids() -> bool:
    """So they do in torch 2.11 and 2.12."""
    try:
        with FakeTensorMode():
            F.embedding(torch.zeros(2, 9), torch.zeros(5, 3))
    except RuntimeError:
        return False
    return True


def test_float_ids() -> None:
    """torch's own words, the user's line, and what to try."""
    if _fake_tensors_take_float_ids():
        pytest.skip("this torch finds out at the first call, in its kernel")
    with pytest.raises(UnsupportedModelError) as caught:
        captured(lambda m, ids: m.e(ids), IDS_BS.float())
    text = str(caught.value)
    assert "torch.export cannot trace Small: RuntimeError: Expected tensor for argument #1 'indices'" in text
    assert "test_capture.py" in text
    assert "the model itself may refuse this call: try it without sp" in text


def test_meta_models() -> None:
    """Captured without any memory; the graph holds the meta parameters."""
    with torch.device("meta"):
        model = Small(lambda m, ids: m.l(m.e(ids)) + m.p[: ids.shape[1]], width=4096, vocab=10**6)
    program = captured(model, IDS_BS.to("meta"))
    assert {p.device.type for p in program.graph_module.parameters()} == {"meta"}


def test_names_that_ops_have_too() -> None:
    def forward(m: Small, mul: Tensor, embedding: Tensor, view: Tensor) -> Tensor:
        return (m.e(mul) * 2).view(2, -1) + embedding.sum() * view.sum()

    named = {"mul": IDS_BS, "embedding": torch.ones(2, 9), "view": torch.ones(2, 9)}
    model = Small(forward)
    program = captured(model, **named)
    assert [port.name for port in program.inputs] == list(named)
    assert [str(node.target) for node in program.graph.find_nodes(op="placeholder")] == list(named)
    torch.testing.assert_close(run(program, *named.values())[0], model(**named))


def test_names_that_are_no_identifiers() -> None:
    program = captured(
        lambda m, batch: m.e(batch["input-ids"]) * batch["my mask"][..., None],
        batch={"input-ids": IDS_BS, "my mask": IDS_BS},
    )
    assert [port.name for port in program.inputs] == ["batch_input_ids", "batch_my_mask"]
    run(program, IDS_BS, IDS_BS)


def test_inputs_that_want_gradients() -> None:
    model = Small(lambda m, x: m.l(x))
    x = torch.randn(2, 9, 4, requires_grad=True)
    run(captured(model, x), x)[0].sum().backward()
    assert x.grad is not None


def test_captured_without_gradients_it_still_trains() -> None:
    model = Small(lambda m, ids: m.l(m.e(ids)))
    with torch.no_grad():
        program = captured(model, IDS_BS)
    run(program, IDS_BS)[0].sum().backward()
    assert model.l.weight.grad is not None


def test_local_inputs_bring_the_global_length() -> None:
    program, _ = both(lambda m, x: m.l(x), (torch.zeros(2, 3, 4),), {}, length=9, local_inputs=True)
    assert program.inputs == (Port("inputs_0", 1, local=True), Port(LENGTH_CARRIER, 0))
    assert accepts(program, [torch.zeros(2, 4, 4)])


def test_history() -> None:
    class Cached(nn.Module):
        def forward(self, ids: Tensor, use_cache: bool | None = None) -> Tensor:
            assert use_cache is False
            return ids + 1

    history = captured(Cached(), IDS_BS).history
    notes = {note.stage: note.text for note in history}
    assert notes["capture"].startswith("3 nodes by torch.export; sequence s")
    assert "use_cache=False" in notes["call"]


def test_ops_stay_whole() -> None:
    def forward(m: Small, ids: Tensor) -> Tensor:
        h = F.rms_norm(m.l(m.e(ids)), (4,))
        q = h.view(*ids.shape, 2, 2).transpose(1, 2)
        return F.cross_entropy(
            F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2).flatten(0, 1), ids.flatten() % 4
        )

    found = ops(captured(forward, IDS_BS))
    for op in ("embedding", "linear", "rms_norm", "scaled_dot_product_attention", "cross_entropy_loss"):
        assert f"aten.{op}" in found
