"""Bound scores: what they hand to kernels, what they refuse, how much they skip."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sp.mask import CAUSAL, FULL, Band
from sp.plan import Plan, make_plan
from sp.runtime.scores import BoundScore, Piece, TileScore
from tests.runtime.scores.cases import CASES
from tests.runtime.scores.test_skipping import check_rank

CPU = torch.device("cpu")
DOCUMENTS = "l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a"
F32_MIN = torch.finfo(torch.float32).min


def bind(text: str, leaves: list[Tensor], length: int, world: int = 1, layout: str = "contiguous") -> BoundScore:
    return BoundScore.bind(text, leaves, make_plan(layout, FULL, length, world, 0), CPU, block=4)


def pieces_of(bound: BoundScore) -> list[Piece]:
    return [piece for step in bound.plan.steps for tile in step.tiles for piece in bound.against(step.source).cut(tile)]


def only(bound: BoundScore) -> TileScore:
    (piece,) = pieces_of(bound)
    assert piece.score is not None
    return piece.score


@pytest.mark.parametrize("text", ["", "l0:+grad -> sink=l0"])
def test_a_score_that_changes_nothing_leaves_tiles_as_they_are(text: str) -> None:
    bound = bind(text, [torch.zeros(1, 2, 1, 1)] if text else [], 9, world=2, layout="striped")
    tiles = [tile for step in bound.plan.steps for tile in step.tiles]
    assert pieces_of(bound) == [Piece(tile) for tile in tiles]
    assert bound.count_steps() == 2
    assert (bound.sink() is None) == (not text)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_added_comes_in_the_dtype_asked_for(dtype: torch.dtype) -> None:
    bias = torch.randn(1, 1, 6, 6, dtype=torch.float64)
    visible = torch.arange(36).view(1, 1, 6, 6) % 5 > 0
    score = only(bind("l0:qk l1:qk -> bias=l0, visible=l1", [bias, visible], 6))
    assert score.form == "added"
    assert score.added(dtype).equal(torch.where(visible, bias, -torch.inf).to(dtype))
    s = torch.randn(2, 3, 6, 6)
    assert score.apply(s).dtype == s.dtype
    torch.testing.assert_close(score.apply(s), s + score.added(torch.float32))


@pytest.mark.parametrize(
    "text",
    [
        "l0:qk+grad -> bias=l0",
        "t = tanh.default(s) -> score=t",
        "l0:qk; t = gt.Tensor(s, l0) -> visible=t",
        "l0:qk; t = tanh.default(s) -> bias=l0, score=t",
    ],
)
def test_what_trains_or_reads_the_score_is_a_function(text: str) -> None:
    leaves = [torch.zeros(1, 1, 6, 6)] if "l0" in text else []
    score = only(bind(text, leaves, 6))
    assert score.form == "function"
    with pytest.raises(AssertionError, match="is no tensor to add"):
        score.added(torch.float32)


def test_a_bias_that_trains_is_never_left_out() -> None:
    """Where it is zero its gradient is not."""
    assert all(piece.score for piece in pieces_of(bind("l0:qk+grad -> bias=l0", [torch.zeros(1, 1, 9, 9)], 9, 2)))


def test_gradients_pass_by_hidden_pairs() -> None:
    """Even where the gradient that comes in is not a number there."""
    visible = torch.eye(4, dtype=torch.bool).view(1, 1, 4, 4)
    bound = bind("l0:qk l1:+grad; t = mul.Tensor(s, l1) -> score=t, visible=l0", [visible, torch.tensor(2.0)], 4)
    totals, s = bound.empty_gradients(), torch.full((1, 1, 4, 4), 3.0)
    grad = torch.where(visible, 1.0, torch.nan)
    assert only(bound).gradient(s, grad, totals).equal(2.0 * visible)
    assert totals[1] == 12


def test_gradients_are_summed_in_float32() -> None:
    table = torch.zeros(1, 1, dtype=torch.bfloat16)
    bound = bind("l0:table+grad; z = mul.Tensor(i, 0); b = lookup(l0, z) -> bias=b", [table], 40)
    totals = bound.empty_gradients()
    for piece in pieces_of(bound):
        assert piece.score is not None
        ones = torch.ones(1, 1, piece.tile.q1 - piece.tile.q0, piece.tile.k1 - piece.tile.k0)
        piece.score.gradient(ones, ones, totals)
    assert totals[0].dtype == torch.float32
    assert totals[0] == 1600  # in bfloat16 the sum stops at 256


@pytest.mark.parametrize(
    ("text", "shape"),
    [("l0:q", (1, 1, 5, 1)), ("l0:q", (6,)), ("l0:k", (1, 1, 6, 1)), ("l0:qk", (1, 1, 6, 7)), ("l0:table", (6,))],
)
def test_leaves_lie_in_the_frame(text: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match=r"leaf l0:.* of a score has shape .* for 6 queries and 6 keys"):
        bind(f"{text} -> bias=l0", [torch.zeros(shape)], 6)
    with pytest.raises(AssertionError, match="0 tensors for the 1 leaves"):
        bind(f"{text} -> bias=l0", [], 6)


def test_a_wrong_definition_is_found() -> None:
    """The judge of `test_skipping.py` sees it: pairs that are not hidden, pairs that are, another bias."""
    documents, mask = (next(case for case in CASES if case.name == name) for name in ("documents", "-inf mask"))
    x, y = documents.leaves(40, 40), mask.leaves(40, 40)
    plan = make_plan("striped", CAUSAL, 40, 2, 1)
    exact, softer = BoundScore.bind(documents.text, x, plan, CPU, 4), BoundScore.bind(mask.text, y, plan, CPU, 4)
    dense = documents.dense(x, 40, 40)
    check_rank(exact, dense)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        check_rank(exact, torch.zeros_like(dense))
    other = dense.clone()
    other[..., 39, 0] = 0
    with pytest.raises(AssertionError, match="a pair is missing"):
        check_rank(exact, other)
    with pytest.raises(AssertionError, match="the score changes this pair"):
        check_rank(softer, mask.dense(y, 40, 40) + 1)


def documents_of(total: int, size: int) -> list[Tensor]:
    numbers = torch.arange(total) // size
    return [numbers.view(1, 1, -1, 1), numbers.view(1, 1, 1, -1)]


@pytest.mark.parametrize(("layout", "most"), [("striped", 0.09), ("contiguous", 0.11), ("zigzag", 0.08)])
def test_documents_cost_little_more_than_themselves(layout: str, most: float) -> None:
    """32 documents of 2,048 tokens: a causal band of 65,536 tokens is skipped but for 3 % and the blocks around it."""
    plan = make_plan(layout, CAUSAL, 65536, 2, 0)
    bound = BoundScore.bind(DOCUMENTS, documents_of(65536, 2000), plan, CPU)
    pieces = pieces_of(bound)
    assert sum(piece.tile.area for piece in pieces) < most * plan.area
    assert len(pieces) < 220


def test_documents_stay_on_their_ranks() -> None:
    """Contiguous ranks that hold whole documents need no other rank's keys; striped ones need all."""
    leaves = documents_of(4096, 512)
    for layout, steps in (("contiguous", 1), ("striped", 4)):
        plan = make_plan(layout, CAUSAL, 4096, 4, 3)
        assert BoundScore.bind(DOCUMENTS, leaves, plan, CPU).count_steps() == steps
    assert BoundScore.bind(DOCUMENTS, documents_of(4096, 700), plan_of(CAUSAL), CPU).count_steps() == 2


def plan_of(band: Band, layout: str = "contiguous") -> Plan:
    return make_plan(layout, band, 4096, 4, 3)


def test_steps_are_those_that_band_and_score_leave_together() -> None:
    i, j = documents_of(4096, 1024)  # the score shows the rank two hops away, the band at most the next one
    for band, steps in ((Band(700, 0), 1), (Band(1500, 0), 3), (FULL, 3)):
        assert BoundScore.bind(DOCUMENTS, [i, j + 2], plan_of(band), CPU).count_steps() == steps
    everything = [torch.zeros_like(i), torch.zeros_like(j)]
    assert BoundScore.bind(DOCUMENTS, everything, plan_of(Band(1, 0), "striped"), CPU).count_steps() == 2


def test_large_negative_numbers_save_steps_only_if_every_query_sees_a_key() -> None:
    text = (
        "l0:q l1:k; a = ne.Tensor(l0, l1); b = _to_copy.default(a, dtype='float32'); c = mul.Tensor(b, -1e30) -> bias=c"
    )
    i, j = documents_of(4096, 512)
    assert BoundScore.bind(text, [i, j], plan_of(CAUSAL), CPU).count_steps() == 1
    blind = i.clone()
    blind[..., 77, :] = 99
    for rank in range(4):
        plan = make_plan("contiguous", CAUSAL, 4096, 4, rank)
        assert BoundScore.bind(text, [blind, j], plan, CPU).count_steps() == 4


def additive(visible: Tensor) -> list[Tensor]:
    return [torch.where(visible, 0.0, F32_MIN).view(1, 1, *visible.shape)]


@pytest.mark.parametrize("band", [FULL, Band(None, 0)])
def test_large_negative_numbers_hide_only_if_every_query_sees_a_key(band: Band) -> None:
    numbers = torch.arange(16) // 4
    visible = numbers.view(-1, 1) == numbers
    plan = make_plan("contiguous", band, 16, 1, 0)

    def covered(visible: Tensor) -> int:
        bound = BoundScore.bind("l0:qk -> bias=l0", additive(visible), plan, CPU, block=4)
        return sum(piece.tile.area for piece in pieces_of(bound))

    blind = visible.clone()
    blind[5] = False
    assert covered(visible) == (64 if band == FULL else 40)
    assert covered(blind) == plan.area
    other = blind.clone()
    other[5, 0] = True  # it sees the first key
    assert covered(other) == (80 if band == FULL else 56)
    other = blind.clone()
    other[5, 15] = True  # it sees the last key, if the band lets it
    assert covered(other) == (80 if band == FULL else plan.area)


def test_a_key_that_is_not_visible_is_not_seen() -> None:
    numbers = torch.arange(16) // 4
    leaves = additive(numbers.view(-1, 1) == numbers)
    for hidden, area in (([], 64), ([5], 256)):
        shown = torch.ones(1, 1, 16, 1, dtype=torch.bool)
        shown[:, :, hidden] = False
        pieces = pieces_of(bind("l0:qk l1:q -> bias=l0, visible=l1", [*leaves, shown], 16))
        assert sum(piece.tile.area for piece in pieces) == area


def test_a_soft_cap_does_not_keep_large_numbers_from_hiding() -> None:
    numbers = torch.arange(16) // 4
    leaves = additive(numbers.view(-1, 1) == numbers)
    for cap, area in (("tanh", 64), ("exp", 256)):  # an exponential may be as small as it likes, for all we know
        text = f"l0:qk; t = {cap}.default(s); u = mul.Tensor(t, 50.0) -> bias=l0, score=u"
        pieces = pieces_of(bind(text, leaves, 16))
        assert sum(piece.tile.area for piece in pieces) == area
        assert all(piece.score for piece in pieces)
