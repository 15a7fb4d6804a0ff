"""The text of a score: what travels in the graph is read back as it was written."""

from __future__ import annotations

import pytest

from sp.score import Leaf, Score

TEXTS = [
    "",
    "l0:q l1:k; a = eq.Tensor(l0, l1); b = le.Tensor(j, i); c = bitwise_and.Tensor(a, b) -> visible=c",
    "l0:table+grad; d = sub.Tensor(i, j); e = clamp.default(d, 0, 31); f = lookup(l0, e) -> bias=f",
    "t = div.Tensor(s, 50.0); u = tanh.default(t); w = mul.Tensor(u, 50.0) -> score=w",
    "l0:+grad -> sink=l0",
    "l0:qk; a = where.ScalarSelf(l0, -inf, 0.0); b = _to_copy.default(a, dtype='float32') -> bias=b",
    "l0:k; a = logical_not.default(l0); b = full_like.default(a, -1e-05, dtype='bool') -> visible=b",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_read_back(text: str) -> None:
    assert str(Score.parse(text)) == text


def test_leaves_say_where_they_lie_and_whether_they_train() -> None:
    assert Score.parse("l0:table+grad l1:qk; a = lookup(l0, l1) -> bias=a").leaves == (Leaf("table", True), Leaf("qk"))


def test_a_score_without_roles_changes_nothing() -> None:
    assert not Score()
    assert Score.parse("l0: -> bias=l0")


def test_reach_follows_lines_back_to_their_leaves() -> None:
    score = Score.parse("l0:q l1:k; a = eq.Tensor(l0, l1); b = le.Tensor(j, i) -> visible=a, bias=b")
    assert score.reach(["a"]) == {"a", "l0", "l1"}
    assert score.reach(["b"]) == {"b", "i", "j"}


def test_what_is_no_score_is_not_read() -> None:
    with pytest.raises(AssertionError, match="not a score"):
        Score.parse("a = le.Tensor(j, i) -> seen=a")
    with pytest.raises(AssertionError, match="not a leaf"):
        Score.parse("l0:x -> visible=l0")
