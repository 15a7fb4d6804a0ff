"""What the examples of op_examples.txt cannot call: attention of sharded queries over replicated keys, alone."""

from collections.abc import Callable

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from sp.passes.rule_table import find_rule
from sp.passes.rules import Case, Refused
from sp.program import Sharded
from sp.testing.cutting import Spread
from sp.testing.oracle import run_whole
from sp.testing.trial import try_ruling
from tests.passes.programs import Small, program_of

S = sympy.Symbol("S")
KEYS, VALUES = torch.rand(2, 3, 5, 4).double(), torch.rand(2, 3, 5, 6).double()
X_BHSE = torch.rand(2, 3, 11, 4).double()
Attention = Callable[[Tensor], Tensor]
CALLS: dict[str, Attention] = {
    "plain": lambda x: F.scaled_dot_product_attention(x, KEYS, VALUES),
    "masked keys": lambda x: F.scaled_dot_product_attention(x, KEYS, VALUES, torch.arange(5)[None] != 2),
    "masked pairs": lambda x: F.scaled_dot_product_attention(
        x, KEYS, VALUES, torch.arange(x.shape[2])[:, None] >= torch.arange(5)
    ),
    "grouped": lambda x: F.scaled_dot_product_attention(x, KEYS[:, :1], VALUES[:, :1], enable_gqa=True),
}


def case_of(call: Attention) -> tuple[Case, dict[fx.Node, object]]:
    """The attention of a captured call, its query sharded."""
    program = program_of(Small(lambda m, x: call(x)), X_BHSE, sequence_dim=2)
    node = next(node for node in program.graph.nodes if "scaled_dot_product" in str(node.target))
    operands = tuple(one for one in node.all_input_nodes if isinstance(one.meta.get("val"), Tensor))
    values = run_whole(program.graph_module, [X_BHSE])
    return Case(node, operands[0], Sharded.whole(2, program.sequence.symbol), operands), values


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
def test_queries_over_replicated_keys(name: str, layout: str) -> None:
    case, values = case_of(CALLS[name])
    ruling = find_rule(case.node)(case)
    assert str(ruling.output) == "sharded(dim 2)"
    assert try_ruling(case.node, ruling, values, Spread(layout, 3, {case.placement.total: 11}))


def test_a_causal_one_is_refused() -> None:
    case, _ = case_of(lambda x: F.scaled_dot_product_attention(x, KEYS, VALUES, is_causal=True))
    with pytest.raises(Refused, match="it is causal or drops out scores") as caught:
        find_rule(case.node)(case)
    assert caught.value.remedy == "leave both out"


def test_sharded_keys_are_refused() -> None:
    case, _ = case_of(lambda x: F.scaled_dot_product_attention(KEYS[:, :, :, :4], x, x))
    with pytest.raises(Refused, match=r"it needs dim 2 of \w+ whole"):
        find_rule(case.node)(Case(case.node, case.operands[1], case.placement, case.operands))
