"""What normalize erases, moves and refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sp.passes.fxtools import op_name
from sp.passes.normalize import Normalize
from tests.passes.programs import Small, listing, ops, program_of

X_BSD = torch.rand(2, 9, 4)


def unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


NORMALIZED: dict[str, tuple[Callable[..., Any], str]] = {
    "idle slices": (lambda m, x: x[:, :, 1:], "slice_3 = aten.slice(inputs_0, 2, 1, 9223372036854775807)"),
    "idle dropouts": (
        lambda m, x: F.dropout(F.dropout(x, 0.0), 0.5, training=False) + F.alpha_dropout(x, 0.5, training=False),
        "add = aten.add(inputs_0, inputs_0)",
    ),
    "idle casts": (
        lambda m, x: x.float().to(torch.float32).to("cpu") + x.double().float(),
        """
        to_3 = aten.to(inputs_0, torch.float64)
        to_4 = aten.to(to_3, torch.float32)
        add = aten.add(inputs_0, to_4)
        """,
    ),
    "casts that copy": (
        lambda m, x: x.to(torch.float32, copy=True),
        "to = aten.to(inputs_0, torch.float32, False, True)",
    ),
    "asserted metadata": (
        lambda m, x: x.double() * 2,
        """
        to = aten.to(inputs_0, torch.float64)
        mul = aten.mul(to, 2)
        """,
    ),
    "dead masks": (lambda m, x: (torch.ones(9, 9).tril(), x + 1)[1], "add = aten.add(inputs_0, 1)"),
    "constants made in a forward": (
        lambda m, x: x * torch.tensor(2.0) + torch.tensor(x.shape[1]),
        """
        sym_size_int_2 = aten.sym_size(inputs_0, 1)
        lift_fresh_copy = aten.lift_fresh_copy(model_lifted_tensor_0)
        mul = aten.mul(inputs_0, lift_fresh_copy)
        scalar_tensor = aten.scalar_tensor(sym_size_int_2, dtype=torch.int64, device=cpu, pin_memory=False)
        add = aten.add(mul, scalar_tensor)
        """,
    ),
    "unflatten": (
        lambda m, x: (x * 2).unflatten(2, (2, -1)),
        """
        sym_size_int_1 = aten.sym_size(inputs_0, 1)
        sym_size_int = aten.sym_size(inputs_0, 0)
        mul = aten.mul(inputs_0, 2)
        unflatten = aten.view(mul, [sym_size_int, sym_size_int_1, 2, 2])
        """,
    ),
}


@pytest.mark.parametrize("name", NORMALIZED)
def test_what_is_left(name: str) -> None:
    forward, expected = NORMALIZED[name]
    model = Small(forward)
    program = program_of(model, X_BSD, passes=[Normalize()])
    assert listing(program) == unindented(expected)
    x = torch.rand(3, 5, 4)
    torch.testing.assert_close(program.graph_module(x)[0], model(x))


def spans(m: Small, x: Tensor) -> Tensor:
    h = m.l(x)[:, 1:]
    return h.reshape(x.shape[0], h.shape[1] * 2, 2) * (x * 2).shape[1] / m.l(x).numel()


def quotients(m: Small, x: Tensor) -> Tensor:
    h = (x.sum(2) @ torch.ones(x.shape[1], 1)).expand(-1, x.shape[1] // 2 + x.shape[1] % 3 + 2)
    return x.sum() + torch.full((h.shape[1],), h.shape[1] ** 2) + max(h.shape[1], 3)


@pytest.mark.parametrize("forward", [spans, quotients])
def test_every_size_is_read_from_an_input(forward: Callable[..., Any]) -> None:
    """At the top of the graph, whatever was computed of it: a shard would have told its own size."""
    model = Small(forward)
    program = program_of(model, X_BSD, passes=[Normalize()])
    nodes = list(program.graph.nodes)
    read = [node for node in nodes if op_name(node) == "aten.sym_size"]
    assert {node.args[0].op for node in read} == {"placeholder"}
    assert max(map(nodes.index, read)) < min(
        nodes.index(node)
        for node in nodes
        if op_name(node) == "aten.linear" or (node not in read and node.op == "call_function")
    )
    for length in (3, 8):
        x = torch.rand(4, length, 4)
        torch.testing.assert_close(program.graph_module(x)[0], model(x))


def test_sizes_that_depend_on_contents_stay() -> None:
    program = program_of(lambda m, ids: m.e(ids[ids > 3]).sum() / ids[ids > 3].shape[0], passes=[Normalize()])
    ids = torch.randint(0, 11, (3, 5))
    torch.testing.assert_close(program.graph_module(ids)[0], program.graph_module(ids)[0])


def test_random_ops_survive() -> None:
    """Dead or alive: `place` has to see them."""
    assert "aten.dropout" in ops(program_of(lambda m, x: F.dropout(x, 0.5), X_BSD, passes=[Normalize()]))


def assigned(m: Small, x: Tensor) -> Tensor:
    h = x.clone()
    h[:, 0] = 0.0
    return h


def added(m: Small, x: Tensor) -> Tensor:
    h = m.l(x)
    h += 1
    h.mul_(2).relu_()
    return h


@pytest.mark.parametrize(
    ("forward", "nodes"),
    [(assigned, ["fill_"]), (added, ["add_", "mul_", "relu_"])],
)
def test_in_place_is_refused(forward: Callable[..., Any], nodes: list[str]) -> None:
    refused = program_of(forward, X_BSD, passes=[Normalize()]).refused
    assert list(refused) == nodes
    assert "write it out of place (x = x + y for x += y, torch.where for x[...] = y)" in str(refused[nodes[0]])


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def test_a_buffer_that_changes_is_refused() -> None:
    (refused,) = program_of(Counting(), X_BSD, passes=[Normalize()]).refused.values()
    assert refused.why == "it changes its operand in place"


def test_check_is_able_to_fail() -> None:
    program = program_of(lambda m, x: x.to(torch.float64), X_BSD)
    with pytest.raises(AssertionError, match="normalize left"):
        Normalize().check(program)


def test_history() -> None:
    note = program_of(lambda m, x: x[:] * 2, X_BSD, passes=[Normalize()]).history[-1]
    assert (note.stage, note.text) == ("normalize", "8 nodes to 3: assertions, idle slices, casts and dropouts erased")
