"""Bind: the axis becomes this process's group, in a graph of its own."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sp.passes import pipeline
from sp.passes.attention import AXIS
from sp.passes.bind import bind
from sp.passes.fxtools import op_name
from tests.passes.programs import IDS_BS, Small, program_of


def forward(m: Small, ids: Tensor) -> Tensor:
    q = m.l(m.e(ids)).view(*ids.shape, 2, 2).transpose(1, 2)
    h = F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
    return (h + m.p[: ids.shape[1]])[:, 1:] * h.sum()


def test_every_op_gets_the_group_and_nothing_else_changes() -> None:
    program = program_of(forward, IDS_BS, passes=pipeline())
    before = str(program.graph)
    module = bind(program, "a group")
    ours = [node for node in module.graph.nodes if op_name(node).startswith("sp.")]
    ours = [node for node in ours if op_name(node) != "sp.promise"]  # it waits for what others have posted
    assert {op_name(node) for node in ours} == {
        *("sp.shard", "sp.unshard", "sp.replicate", "sp.replicate_all", "sp.reduce", "sp.narrow", "sp.attention")
    }
    assert all(AXIS not in node.args and node.args.count("a group") == 1 for node in ours)
    assert str(module.graph).replace("a group", AXIS) == before == str(program.graph)
    assert "a group" in module.code


def test_parameters_are_shared() -> None:
    program = program_of(forward, IDS_BS, passes=pipeline())
    held = [id(parameter) for parameter in program.graph_module.parameters()]
    assert [id(parameter) for parameter in bind(program, "").parameters()] == held


def test_a_world_of_one_is_the_model_itself() -> None:
    model = Small(forward).double()
    module = bind(program_of(model, IDS_BS, passes=pipeline()), "")
    ids = torch.randint(0, 11, (3, 7))
    torch.testing.assert_close(module(ids)[0], model(ids), rtol=1e-12, atol=1e-12)
