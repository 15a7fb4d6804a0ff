"""What a refusal says: which dim of which value holds the sequence, and what to write instead."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.errors import UnsupportedModelError
from sp.passes.dim_rules import mean
from sp.passes.lookup_rules import one_hot
from sp.passes.rule_table import find_rule
from sp.passes.rules import Case, Refused
from sp.program import Sharded
from tests.passes.programs import Small, placed, program_of

REFUSED: dict[str, tuple[Callable[[Tensor], Any], str, str]] = {
    "no rule": (
        lambda x: x.renorm(2, 0, 1.0),
        "sp has no placement rule for aten.renorm",
        'say how it meets each dim: sp.register_rule("aten::renorm", "... d!, d -> ... d")',
    ),
    "a dim that must be whole": (
        lambda x: x.sort(1)[0],
        "it needs dim 1 of embedding whole, and the sequence lives there",
        "move the sequence to another dim",
    ),
    "any": (lambda x: (x > 0).any(1), "it needs dim 1 of gt whole", "(x != 0).sum(dim) > 0 for any"),
    "norm": (lambda x: x.norm(), "it needs dim 1 of embedding whole", "x.square().sum(dim).sqrt()"),
    "variance": (lambda x: x.var(1), "it needs dim 1 of embedding whole", "keepdim=True)).square().sum(dim)"),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]), "it needs dim 1 of embedding whole", "over the features"),
    "group norm": (lambda x: F.group_norm(x.mT, 2), "it needs dim 2 of mT whole", "layer_norm, rms_norm"),
    "batch norm": (
        lambda x: F.batch_norm(x.mT, None, None, training=True),
        "it takes statistics over the whole batch; the sequence in dim 2 of mT would give each rank other ones",
        "call eval()",
    ),
    "histogram": (
        lambda x: torch.histc(x, 4),
        "lie between the extremes of embedding",
        "torch.histc(x, bins, min, max)",
    ),
    "classes": (
        lambda x: F.cross_entropy(x, x.mean(1).long()),
        "it compares classes along dim 1 of embedding, where the sequence lives",
        "put the classes into that dim",
    ),
    "mask as index": (
        lambda x: x[x > 0],
        "its mask picks a number of elements that only the data tell (the sequence is in dim 1 of embedding)",
        "use torch.where",
    ),
    "positions of a condition": (
        lambda x: torch.where(x > 0)[0],
        "its mask picks a number of elements that only the data tell (gt holds the sequence)",
        "use torch.where(condition, x, y)",
    ),
    "gather of fewer": (
        lambda x: x.gather(2, torch.zeros(2, 1, 1, dtype=torch.int64)),
        "dim 1 of embedding holds the sequence, and zeros is (2, 1, 1)",
        "give both the same size in dim 1",
    ),
    "repeated": (lambda x: x.repeat(1, 2, 1), "it repeats dim 1 of embedding", "or use repeat_interleave"),
    "tiled": (lambda x: x.tile(2, 1), "it repeats dim 1 of embedding", "or use repeat_interleave"),
    "repeated as data say": (
        lambda x: x.repeat_interleave(torch.ones(4, dtype=torch.int64), 2, output_size=4),
        "its result is as long as its data say",
        "give one number of repeats, and no output_size",
    ),
    "an op refused on purpose": (
        lambda x: x.take(torch.arange(3)),
        "it takes elements in row-major order of the whole tensor",
        "use gather or torch.where",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name: str) -> None:
    call, why, remedy = REFUSED[name]
    with pytest.raises(UnsupportedModelError) as caught:
        placed(lambda m, ids: call(m.e(ids)))
    (refusal,) = caught.value.refusals
    assert why in refusal.why
    assert remedy in refusal.remedy


def case_of(call: Callable[[Tensor], Any], op: str) -> Case:
    """The first op of that name, its operand sharded along dim 1."""
    program = program_of(Small(lambda m, x: call(x)), torch.rand(2, 9, 4))
    node = next(node for node in program.graph.nodes if op in str(node.target))
    anchor = node.all_input_nodes[0]
    return Case(node, anchor, Sharded.whole(1, program.sequence.symbol), (anchor,))


def test_a_mean_that_reduce_has_missed() -> None:
    with pytest.raises(Refused, match="it averages over the sequence") as caught:
        mean(case_of(lambda x: x.mean(1), "mean"))
    assert caught.value.remedy == "use sum and divide by the length"


def test_classes_that_are_counted() -> None:
    case = case_of(lambda x: F.one_hot((x > 0).long(), 3), "one_hot")
    case.node.args = (case.node.args[0],)
    with pytest.raises(Refused, match=r"it counts the classes in \w+, and ranks have different ones") as caught:
        one_hot(case)
    assert caught.value.remedy == "give num_classes"


def test_statistics_that_are_updated() -> None:
    case = case_of(lambda x: F.instance_norm(x.mT, torch.zeros(4), torch.ones(4)), "instance_norm")
    case = replace(case, operands=tuple(case.node.all_input_nodes))
    with pytest.raises(Refused, match="it updates running statistics, each rank with those of its own tokens"):
        find_rule(case.node)(case)


def test_repeats_alone() -> None:
    case = case_of(lambda x: torch.repeat_interleave(x[0, :, 0].long() + 1, output_size=9), "repeat_interleave")
    with pytest.raises(Refused, match="its result is as long as its data say"):
        find_rule(case.node)(case)
