"""Lines run as the graph's own operators would: their dtypes, their numbers, their refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sp.runtime.scores.evaluate import evaluate
from sp.runtime.scores.op_table import base_of, find_op, has_gradient, is_evaluable
from sp.score import Score

I8, F16 = torch.arange(4, dtype=torch.int8).view(1, 1, 4, 1), torch.ones(1, 1, 1, 3, dtype=torch.float16)
NUMBER, WIDE = torch.tensor(2.5), torch.ones(1, 1, 4, 3, dtype=torch.float64)


def run(call: str, *leaves: Tensor) -> Tensor:
    known = {f"l{index}": leaf for index, leaf in enumerate(leaves)}
    return evaluate(Score.parse(f"a = {call} -> bias=a"), known, ["a"])["a"]


@pytest.mark.parametrize(
    ("call", "leaves", "expected"),
    [
        ("add.Tensor(l0, l1)", (F16, NUMBER), F16 + NUMBER),  # a number in a tensor does not widen
        ("add.Tensor(l0, l1)", (F16, NUMBER.view(1, 1, 1, 1)), F16 + NUMBER.view(1, 1, 1, 1)),
        ("add.Tensor(l0, l1)", (F16, WIDE), F16 + WIDE),
        ("mul.Tensor(l0, 300)", (I8,), I8 * 300),
        ("div.Tensor(l0, 2)", (I8,), I8 / 2),
        ("div.Tensor_mode(l0, 3, rounding_mode='floor')", (I8,), I8 // 3),
        ("eq.Scalar(l0, 2.0)", (I8,), I8 == 2.0),
        ("_to_copy.default(l0, dtype='bfloat16')", (WIDE,), WIDE.bfloat16()),
        ("to.dtype(l0, 'int64')", (WIDE,), WIDE.long()),
        ("where.ScalarSelf(l0, -inf, l1)", (I8 > 1, F16), torch.where(I8 > 1, -torch.inf, F16)),
        ("full_like.default(l0, 3, dtype='float64')", (I8,), torch.full_like(I8, 3, dtype=torch.float64)),
    ],
)
def test_dtypes_are_promoted_as_in_the_graph(call: str, leaves: tuple[Tensor, ...], expected: Tensor) -> None:
    found = run(call, *leaves)
    assert found.dtype == expected.dtype
    assert found.equal(expected)


def test_lookup_gives_each_head_its_column() -> None:
    table, index = torch.randn(5, 3), torch.randint(-5, 5, (2, 1, 4, 6))
    found = run("lookup(l0, l1)", table, index)
    assert found.equal(torch.nn.functional.embedding(index[:, 0] % 5, table).permute(0, 3, 1, 2))


def test_only_what_is_wanted_is_evaluated() -> None:
    score = Score.parse("a = neg.default(l0); b = mul.Tensor(a, l1); c = abs.default(a) -> bias=b, visible=c")
    assert evaluate(score, {"l0": F16}, ["c"]).keys() == {"l0", "a", "c"}


REFUSED = [
    *("sum.default", "softmax.int", "mm.default", "cumsum.default", "expand.default"),  # not element by element
    *("add_.Tensor", "add.out", "fill_.Scalar"),  # they write
    *("rand_like.default", "dropout.default", "bernoulli.p", "rrelu.default"),  # random
    *("frexp.Tensor", "where.default", "nothing.default", "add.Nothing", "add", "", "lookups"),
]
ALLOWED = ["lookup", "eq.Tensor", "where.ScalarOther", "masked_fill.Tensor", "_to_copy.default", "gelu.default"]


@pytest.mark.parametrize("op", REFUSED)
def test_what_is_refused(op: str) -> None:
    assert not is_evaluable(op)
    if op:
        with pytest.raises(AssertionError, match=f"a score may not call {op}"):
            run(f"{op}(l0)", F16)


@pytest.mark.parametrize("op", ALLOWED)
def test_what_is_allowed(op: str) -> None:
    assert is_evaluable(op)


def test_synonyms_are_one_operator() -> None:
    assert base_of("subtract.Scalar") == "sub"
    assert base_of("to.dtype") == "_to_copy"
    assert has_gradient("true_divide.Tensor")
    assert find_op("multiply.Tensor") is torch.ops.aten.multiply.Tensor


def test_unknown_values_and_indices_outside_of_the_frame() -> None:
    with pytest.raises(AssertionError, match="the value 'l1' of a score is not known here"):
        run("add.Tensor(l0, l1)", F16)
    with pytest.raises(AssertionError, match="an index lies in the frame"):
        run("lookup(l0, l1)", torch.randn(5, 3), torch.arange(4))
    with pytest.raises(AssertionError, match="all heads share an index"):
        run("lookup(l0, l1)", torch.randn(5, 3), torch.zeros(1, 2, 1, 1, dtype=torch.long))
    with pytest.raises(AssertionError, match="a table is"):
        run("lookup(l0, l1)", torch.randn(5), torch.zeros(1, 1, 1, 1, dtype=torch.long))
