"""Equal graphs get one order and one set of names, whatever order a model's lines were called in."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sp.passes import pipeline
from sp.passes.canonical import Canonical
from sp.passes.fxtools import op_name
from sp.passes.normalize import Normalize
from tests.passes.programs import IDS_BS, Small, listing, program_of

ORDERED = (Normalize(), Canonical())


def tables(m: Small, ids: Tensor, order: tuple[str, ...]) -> Tensor:
    """Rotary tables for kinds of layers, made in the order of a set."""
    places = torch.arange(ids.shape[1])[:, None]
    found = {name: (places * (0.1 if name == "local" else 0.5)).cos() for name in order}
    return m.e(ids) * found["global"] + m.l(m.e(ids)) * found["local"]


def captured(*order: str, passes: Any = ORDERED) -> Any:
    torch.manual_seed(0)
    return program_of(lambda m, ids: tables(m, ids, order), IDS_BS, passes=passes)


def test_any_order_of_a_set_gives_one_program() -> None:
    one, other = captured("local", "global"), captured("global", "local")
    assert listing(one) == listing(other)
    assert one.digest() == other.digest()
    whole = [captured(*order, passes=pipeline()).digest() for order in (("local", "global"), ("global", "local"))]
    assert whole[0] == whole[1]
    before = [captured(*order, passes=(Normalize(),)) for order in (("local", "global"), ("global", "local"))]
    assert listing(before[0]) != listing(before[1])


def test_values_stay_what_they_are() -> None:
    program = captured("global", "local")
    torch.manual_seed(0)
    model = Small(lambda m, ids: tables(m, ids, ("local", "global")))
    torch.testing.assert_close(program.graph_module(IDS_BS)[0], model(IDS_BS))


def test_parameters_stand_behind_the_inputs() -> None:
    kinds = [node.op for node in captured("local", "global").graph.nodes]
    assert kinds == sorted(kinds, key=["placeholder", "get_attr", "call_function", "output"].index)


def test_refusals_keep_their_nodes() -> None:
    def forward(m: Small, ids: Tensor) -> Tensor:
        ids.mul_(1)
        return m.e(ids.sin().long())

    program = program_of(forward, IDS_BS, passes=(Normalize(), Canonical()))
    (name,) = program.refused
    assert op_name(next(node for node in program.graph.nodes if node.name == name)) == "aten.mul_"


def test_check_is_able_to_fail() -> None:
    with pytest.raises(AssertionError, match="canonical left another order"):
        Canonical().check(captured("global", "local", passes=(Normalize(),)))
