"""Every placement rule is tried by the oracle: what it says is exact, or it refuses.  The calls: op_examples.txt."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from sp.passes import rule_table
from sp.testing.oracle import Verdict, check_rule
from tests.passes.exact import check_forward
from tests.passes.op_examples import EXAMPLES, SHAPES, Example, code, function
from tests.passes.op_page import page
from tests.passes.programs import Small

# The least regular layout at a length that 3 does not divide; the slow tests try the others.
ONCE: dict[str, Any] = {"lengths": (11,), "layouts": ("zigzag",)}
# The ring has tests of its own; so has an attention without it, in test_contraction_rules.
ELSEWHERE = {"sp.attention", "aten.scaled_dot_product_attention"}


@functools.cache
def verdict_of(op: str) -> Verdict:
    """Of all examples of an op at once."""
    calls = [(number, example.dims, function(example.text)) for number, example in enumerate(EXAMPLES[op])]

    def every_dim(*xs: Tensor) -> dict[str, Any]:
        return {f"{number}_{dim}": call(xs[dim]) for number, dims, call in calls for dim in dims}

    return check_rule(every_dim, [torch.rand(shape) for shape in SHAPES], sequence_dim=(0, 1, 2), **ONCE)


def results_of(example: Example) -> dict[int, str]:
    """What the oracle says of an example, by dim."""
    results, number = verdict_of(example.op).results, EXAMPLES[example.op].index(example)
    return {dim: results[f"{number}_{dim}"] for dim in example.dims}


def test_every_op_of_the_table_is_called() -> None:
    aliases = {f"aten.{name}" for name in rule_table.ALIASES}  # tried in test_pointwise
    known = {op for op in rule_table.TABLE if op.startswith("aten.")}
    assert {f"aten.{op}" for op in EXAMPLES} == known - aliases - ELSEWHERE


@pytest.mark.parametrize("op", EXAMPLES)
def test_op(op: str) -> None:
    verdict = verdict_of(op)
    assert verdict.results, str(verdict)
    assert f"aten.{op}" in {*verdict.tried, "aten.empty_like", "aten.mean"}  # no values; made a sum and a count
    for example in EXAMPLES[op]:
        found = results_of(example)
        expected = {dim: example.codes[dim] for dim in example.dims}
        assert {dim: code(result) for dim, result in found.items()} == expected, f"{example.text}: {found}"


def test_the_page_of_ops_is_up_to_date(golden_page: Callable[[str, str], None]) -> None:
    results: Mapping[Example, Mapping[int, str]] = {
        example: results_of(example) for examples in EXAMPLES.values() for example in examples
    }
    golden_page("docs/ops.md", page(results))


def rows(table: str, columns: int) -> list[tuple[str, list[str]]]:
    lines = [line.split() for line in table.strip().splitlines()]
    return [(" ".join(line[:-columns]), line[-columns:]) for line in lines]


# The same for an operand x whose dim 1 is the sequence, a span of it, or merged with 3 elements in front or behind.
FORMS = {
    "whole": lambda wide: wide[:, 0],
    "[:-1]": lambda wide: wide[:, 0, :-1],
    "[1:]": lambda wide: wide[:, 0, 1:],
    "outer": lambda wide: wide.flatten(1, 2),
    "inner": lambda wide: wide.transpose(1, 2).flatten(1, 2),
}
IN_EVERY_FORM = """                                  whole [:-1] [1:] outer inner
    x * 2                                           1   1[   1[   1*   1
    x + ramp(x.shape[1], 1)                         1   1[   1[   1*   1
    F.linear(x, ramp(3, x.shape[2]), ramp(3))       1   1[   1[   1*   1
    ramp(3, x.shape[1]) @ x                         +   +    +    +    +
    torch.einsum("abc->c", x)                       +   +    +    +    +
    x.repeat_interleave(2, 1)                       1   1[   1[   1*   1
    x.repeat(2, 1, 1)                               1   1[   1[   1*   1
    x.amax(-1)                                      1   1[   1[   1*   1
    x.sort(-1)[0]                                   1   1[   1[   1*   1
    x.movedim(1, 2)                                 2   2[   2[   2*   2
    x.index_select(-1, torch.arange(2))             1   1[   1[   1*   1
    ramp(9, 3)[(x * 4).long()]                      1   1[   1[   1*   1
    x[..., torch.tensor([1, 0])]                    1   1[   1[   1*   1
    F.one_hot((x * 4).long(), 5)                    1   1[   1[   1*   1
    F.mse_loss(x, x.sin())                          =   =    =    =    =
    F.group_norm(x.flatten(0, 1), 1)                0*  0*[  0*[  0*   0*
    F.cross_entropy(x.mT, (x[..., 0] > 0.5).long()) =   =    =    =    =
    x @ ramp(x.shape[2])                            1   1[   1[   1*   1
    x.transpose(1, 2)                               2   2[   2[   2*   2
    x.flatten(0, 1)                                 0*  0*[  0*[  0*   0*
    x.flatten(1, 2)                                 1   1[   1[   1*   1
    x.reshape(-1)                                   0*  0*[  0*[  0*   0*
    x.view(x.shape[0], 1, -1, x.shape[2], 1)        2   2[   2[   2*   2
    x.unsqueeze(1)                                  2   2[   2[   2*   2
    x.expand(2, *x.shape)                           2   2[   2[   2*   2
    x[0]                                            0   0[   0[   0*   0
    x[:, 0]                                         =   =    =    -    -
    x[..., 1:]                                      1   1[   1[   1*   1
    x[:, 1:]                                        1[  1[   1[   -    -
    x.split(2, -1)[0]                               1   1[   1[   1*   1
    x.sum(1)                                        +   +    +    +    +
    x.sum(2)                                        1   1[   1[   1*   1
    x.mean()                                        =   =    =    =    =
    x.softmax(-1)                                   1   1[   1[   1*   1
    x.cumsum(1)                                     -   -    -    -    -
    F.layer_norm(x, x.shape[2:])                    1   1[   1[   1*   1
    F.embedding((x > 0.5).long(), ramp(2, 3))       1   1[   1[   1*   1
    torch.cat([x, ramp(*x.shape)], 2)               1   1[   1[   1*   1
    torch.stack([ramp(*x.shape), x], 1)             2   2[   2[   2*   2
    F.pad(x, (1, 0))                                1   1[   1[   1*   1
    F.cross_entropy(x.flatten(0, 1), ids(x))        =   =    =    =    =
    torch.where(x > 0.5, x, ramp(x.shape[1], 1))    1   1[   1[   1*   1
"""


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_operand(form: str) -> None:
    table, column = rows(IN_EVERY_FORM.split("inner\n", 1)[1], 5), list(FORMS).index(form)
    calls = [function(text) for text, _ in table]

    def every_call(wide: Tensor) -> list[Tensor]:
        x = FORMS[form](wide)
        return [call(x) for call in calls]

    verdict = check_rule(every_call, [torch.rand(2, 3, 8, 4)], sequence_dim=2, **ONCE)
    assert verdict.results, str(verdict)
    found = [(text, code(result)) for (text, _), result in zip(table, verdict.results.values(), strict=True)]
    assert found == [(text, codes[column]) for text, codes in table], str(verdict)


def test_merged_dims_come_apart_again() -> None:
    def merge_and_split(x: Tensor) -> list[Tensor]:
        return [(x.flatten(0, 1) * 2).view(x.shape), (x.flatten(1, 2) * 2).unflatten(1, (-1, 4))]

    verdict = check_rule(merge_and_split, [torch.rand(2, 8, 4)])
    assert str(verdict) == "exact: sharded(dim 1), sharded(dim 1)"


def merged_sizes_as_products_and_as_sums(m: Small, ids: Tensor) -> Tensor:
    batch, length = ids.shape
    x = m.l(m.e(ids))[:, :-1].reshape(batch * (length - 1), 4)
    return x + m.p[:1].expand(batch * length - batch, 4)


def test_equal_sizes_may_be_written_in_other_ways() -> None:
    """B·(S − 1) and B·S − B.  Which of them torch writes for a view depends on what it has seen before."""
    check_forward(merged_sizes_as_products_and_as_sums, "striped")


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", EXAMPLES)
def test_op_in_every_form(op: str, form: str) -> None:
    """Whatever the form: exact or refused."""
    for dim in range(3):
        calls = [function(example.text) for example in EXAMPLES[op] if dim in example.dims]
        sizes = [2, 4]
        shape = [*sizes[:dim], 3, 8, *sizes[dim:]]

        def every_call(wide: Tensor, dim: int = dim, calls: Any = calls) -> list[Tensor]:
            moved = wide.movedim((dim, dim + 1), (1, 2))
            return [call(FORMS[form](moved).movedim(1, dim)) for call in calls]

        check_rule(every_call, [torch.rand(shape)], sequence_dim=dim + 1, lengths=(11, 12, 7), world=3)
