"""Whether a query may see no key at all, as far as one can tell before anything runs."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sp.passes import preparation
from sp.passes.attention_calls import AttentionCall, may_hide_rows
from sp.passes.index_algebra import IndexAlgebra
from sp.passes.index_rules import INDEX_RULES
from sp.passes.recognize import Recognize
from sp.passes.scored import is_scored
from tests.passes.forms import Form, Written, future, hidden, scores
from tests.passes.programs import IDS_BS, program_of


def softmax(of: Callable[[Tensor, Tensor], Tensor]) -> Form:
    return lambda m, q, k, v: of(q, k).softmax(-1) @ v


def strange(q: Tensor) -> Tensor:
    """True where no band is."""
    places = torch.arange(q.shape[-2])
    return (places + places[:, None]) % 3 == 0


MIN = torch.finfo(torch.float32).min
ROWS: dict[str, tuple[bool, Form]] = {
    "all seen": (False, softmax(scores)),
    "causal": (False, softmax(hidden)),
    "strictly causal": (True, softmax(lambda q, k: scores(q, k).masked_fill(~future(k).mT, -math.inf))),
    "hidden softly": (False, softmax(lambda q, k: scores(q, k) + strange(q) * MIN)),
    "hidden softly twice": (True, softmax(lambda q, k: scores(q, k) + strange(q) * MIN + strange(q).mT * MIN)),
    "a bias": (False, lambda m, q, k, v: (scores(q, k) + m.slopes[:, None, None]).softmax(-1) @ v),
}


@pytest.mark.parametrize("name", ROWS)
def test_may_hide_rows(name: str) -> None:
    expected, form = ROWS[name]
    program = program_of(Written(form), IDS_BS, passes=(*preparation(), Recognize()))
    (node,) = [node for node in program.graph.nodes if is_scored(node)]
    call = AttentionCall.of(node)
    assert call.nan_rows
    assert may_hide_rows(call.read(program, IndexAlgebra(INDEX_RULES))) == expected


def test_data_may_hide_rows() -> None:
    def form(m: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = m.bias[0, 0, 0, : k.shape[2]] > 0
        return scores(q, k).masked_fill(~seen, -math.inf).softmax(-1) @ v

    program = program_of(Written(form), IDS_BS, passes=(*preparation(), Recognize()))
    (node,) = [node for node in program.graph.nodes if is_scored(node)]
    assert may_hide_rows(AttentionCall.of(node).read(program, IndexAlgebra(INDEX_RULES)))
    assert torch.isfinite(Written(form)(IDS_BS)).all()
