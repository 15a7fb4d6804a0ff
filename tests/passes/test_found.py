"""What `find_placements` knows of each value besides its placement, and what it assumes behind what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.errors import UnsupportedModelError
from sp.passes import preparation, rewriting
from sp.passes.attention import SDPA
from sp.passes.fxtools import op_name
from sp.passes.place import Place, draws_noise, find_placements
from sp.passes.reduce import Reduce
from sp.passes.rule_table import TABLE
from sp.passes.rules import Case, Ruling, unary
from sp.program import Program, Replicated
from tests.passes.programs import BEFORE_PLACE, Small, placed, program_of

ALL_BEFORE = (*preparation(), *rewriting(), Reduce())


def told(program: Program) -> dict[str, str]:
    """Of each value: its placement, its local form, what it depends on; or that nothing is known of it."""
    found, _ = find_placements(program)
    facts = {"trains": found.trains, "differentiable": found.differentiable, "unknown": found.unknown}
    lines = dict[str, str]()
    for node in program.graph.nodes:
        words = [type(found.natural[node]).__name__.lower()] if node in found.natural else []
        words += ["local"] if node in found.local else []
        words += ["by rule"] if node in found.rulings else []
        lines[node.name] = ", ".join([*words, *(name for name, nodes in facts.items() if node in nodes)])
    return lines


def reasons(program: Program) -> list[str]:
    return [f"{each.node.split(':')[0]}: {each.why.splitlines()[0]}" for each in find_placements(program)[1].listed]


def behind_refusals(m: Small, ids: Tensor) -> Any:
    h = m.e(ids)
    scores = h @ h.mT  # S × S: nothing can be said of what is made of it
    loss = F.cross_entropy(h, ids[:, :4] % 4)  # a scalar, the same on all ranks if it could be had
    summed = h.cumsum(1)  # holds the sequence: sharded
    ordered = h.sort(1)[0]  # two results at once
    same = (ids[:, None] == ids[:, :, None]).float()
    return scores.softmax(-1) @ h, (loss * h).flip(1), (summed + h).softmax(1), ordered.flip(1), same @ h


def weights_and_ids(m: Small, ids: Tensor) -> Tensor:
    return m.e(ids)[..., :1] * ids[:, None]  # S × S, refused before anything is known of it


def a_mask_of_contents(m: Small, ids: Tensor) -> Tensor:
    places = torch.arange(ids.shape[1])
    mask = (places[:, None] >= places).cumsum(-1) > 2
    q = m.e(ids).unflatten(-1, (2, 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def index_domain(m: Small, ids: Tensor) -> Tensor:
    return m.e(ids) * (ids[:, 1:] > 3).sum() + m.e(ids).new_ones(ids.shape[1], 1)


BY_RULE = "sharded, by rule, trains, differentiable"
ASSUMED = "sharded, trains, differentiable"
ALIKE = "replicated, trains, differentiable"
FOUND: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "index domain": (
        index_domain,
        {
            "inputs_0": "replicated, local",  # whole numbers carry no gradient
            "model_e_weight": ALIKE,
            "embedding": BY_RULE,
            "slice_1": "replicated, local",
            "gt": "replicated, local, by rule",
            "sum_1": "replicated",
            "mul": BY_RULE,
            "new_ones": "replicated, local",
            "add": BY_RULE,
        },
    ),
    "several results of ids": (
        lambda m, ids: m.e(torch.stack([ids, ids + 1], -1).chunk(2, -1)[0].squeeze(-1)),
        {"chunk": "replicated, local, by rule", "getitem": "replicated, local, by rule", "embedding": BY_RULE},
    ),
    "behind refusals": (
        behind_refusals,
        {
            "matmul": "trains, differentiable, unknown",
            "softmax": "unknown",
            "matmul_1": "unknown",
            "cross_entropy_loss_default": ALIKE,
            "mul": BY_RULE,
            "flip": ASSUMED,
            "cumsum": ASSUMED,
            "add": BY_RULE,
            "softmax_1": ASSUMED,
            "sort": "trains, differentiable, unknown",
            "getitem": "unknown",
            "flip_1": "unknown",
            "unsqueeze": "replicated, local, by rule",
            "eq": "unknown",
            "to": "unknown",
            "matmul_2": "unknown",
        },
    ),
    "refused, made of weights and of what does not train": (
        weights_and_ids,
        {"unsqueeze": "replicated, local, by rule", "mul": "trains, differentiable, unknown"},
    ),
    "a mask that a refused attention reads": (
        a_mask_of_contents,
        {
            "arange": "replicated, local",
            "ge": "unknown",
            "cumsum": "unknown",
            "gt": "unknown",
            "scaled_dot_product_attention": ASSUMED,
        },
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found(name: str) -> None:
    forward, expected = FOUND[name]
    passes = ALL_BEFORE if forward is a_mask_of_contents else BEFORE_PLACE
    found = told(program_of(forward, passes=passes))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        # Of two spans the first decides; of a span and a whole sequence the whole one.
        (lambda m, ids: m.e(ids)[:, 1:] * m.e(ids)[:, :-1], "mul: sharded(dim 1, [1:S])"),
        (lambda m, ids: m.e(ids)[:, 1:] * (m.p[: ids.shape[1] - 1] * m.l.bias), "mul_1: sharded(dim 1)"),
        # A table that meets nothing but itself stays whole.
        (lambda m, ids: m.p[: ids.shape[1]].relu() + m.e(ids), "relu: replicated"),
    ],
)
def test_which_operand_decides(forward: Callable[..., Any], expected: str) -> None:
    assert expected in placed(forward).splitlines()


def test_a_rule_that_forgets_an_operand_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "aten.mul", lambda case: unary(case, case.placement))  # type: ignore[arg-type]
    (reason,) = reasons(program_of(lambda m, ids: m.e(ids) * m.l.bias, passes=BEFORE_PLACE))
    assert reason.startswith("mul: its rule does not say what model_l_bias must be")


def test_a_shard_is_never_gathered_for_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rule of sp asks for what its operands cannot become; one of a user's might."""

    def rule(case: Case) -> Ruling:
        return Ruling(case.placement, {case.anchor: case.placement, case.operands[1]: Replicated()})

    monkeypatch.setitem(TABLE, "aten.mul", rule)  # type: ignore[arg-type]
    (reason,) = reasons(program_of(lambda m, ids: m.e(ids) * m.l(m.e(ids)), passes=BEFORE_PLACE))
    assert reason.startswith("mul: linear is sharded(dim 1) but is needed as replicated")
    assert not reasons(program_of(lambda m, ids: m.e(ids) * m.l.bias, passes=BEFORE_PLACE)), "as a parameter is"
    assert not reasons(program_of(lambda m, ids: m.e(ids) * m.e(ids).sum(), passes=BEFORE_PLACE)), "nor is a sum one"


def test_what_is_refused_behind_a_refusal() -> None:
    refused = [reason.split(":")[0] for reason in reasons(program_of(behind_refusals, passes=BEFORE_PLACE))]
    assert refused == ["matmul", "cross_entropy_loss_default", "flip", "cumsum", "softmax_1", "sort", "eq"]


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda m, ids: m.e(ids).cumsum(1), "1 node cannot be spread over ranks exactly\n"),
        (lambda m, ids: m.e(ids).cumsum(1).flip(1), "2 nodes cannot be spread over ranks exactly\n"),
    ],
)
def test_nodes_are_counted(forward: Callable[..., Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        program_of(forward, passes=(*BEFORE_PLACE, Place()))
    assert str(caught.value).startswith(words)


def test_a_number_read_from_a_shard_is_refused() -> None:
    """Captured models have none: torch.export makes no graph of one.  A pass might."""
    program = program_of(lambda m, ids: m.l(m.e(ids)), passes=BEFORE_PLACE)
    nodes = {node.name: node for node in program.graph.nodes}
    with program.graph.inserting_after(nodes["linear"]):
        equal = program.graph.call_function(torch.ops.aten.equal.default, (nodes["embedding"], nodes["linear"]))
    equal.meta["val"] = True
    (reason,) = reasons(program)
    assert reason.startswith("equal_default: it reads a number from embedding, which is spread over the ranks")


def test_noise_inside_of_a_region_is_noise() -> None:
    """Of the regions that no pass has put in line: the node itself draws none."""

    def forward(m: Small, ids: Tensor) -> Tensor:
        with torch.no_grad():
            noise = torch.randn(4) * 2
        return m.e(ids) + noise

    assert any("it draws random numbers" in reason for reason in reasons(program_of(forward)))


@pytest.mark.parametrize(
    ("options", "draws"),
    [({"dropout_p": 0.5}, True), ({"is_causal": True}, False), ({"attn_mask": True}, False)],
)
def test_attentions_draw_noise_to_drop_out_scores_alone(options: dict[str, Any], draws: bool) -> None:
    def forward(m: Small, ids: Tensor) -> Tensor:
        q = m.e(ids).unflatten(-1, (2, 2)).transpose(1, 2)
        mask = ids[:, None, :, None] > ids[:, None, None] if "attn_mask" in options else None
        return F.scaled_dot_product_attention(q, q, q, **{**options, "attn_mask": mask})

    (attention,) = [node for node in program_of(forward).graph.nodes if op_name(node) == SDPA]
    assert draws_noise(attention) is draws
