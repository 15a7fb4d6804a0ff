"""`sp.check` and `validate=True`: right programs pass, planted mistakes are seen, and nothing of the model changes."""

import copy
import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sp
from sp.models import GPT, GPTConfig, Llama, LlamaConfig
from sp.passes import rule_table
from sp.passes.rules import Case, Ruling, by_pattern, unary
from sp.program import Partial
from sp.testing.ranks import run_ranks
from tests.decoders import decoder, prompt

IDS = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(0))


def llama() -> nn.Module:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=1, heads=2, kv_heads=1, width=16))


class Small(nn.Module):
    """One linear layer, then `way`."""

    def __init__(self, way=lambda x: x, width: int = 4) -> None:
        super().__init__()
        self.linear, self.way = nn.Linear(width, width), way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self.linear(x))


def unchanged(case: Case) -> Ruling:
    return unary(case, case.placement)


@pytest.fixture
def wrong_flip(monkeypatch):
    """A rule that says a flip of the sequence could be done on shards."""
    monkeypatch.setitem(rule_table.TABLE, "aten.flip", unchanged)


@pytest.mark.parametrize("strategy", ["ring", "striped", "zigzag"])
def test_a_right_model_is_exact(strategy):
    report = sp.check(llama(), (IDS,), {"labels": IDS}, strategy=strategy, world_size=3)
    assert report.exact
    assert report.lengths == (9, 11)
    assert max(row.relative for row in report.rows) < 1e-12
    compared = {row.what for row in report.rows}
    assert {"logits", "loss", "d loss / d norm.weight", "d outputs / d tokens.weight"} <= compared


def test_the_report_reads_and_travels():
    report = sp.check(llama(), (IDS,), {"labels": IDS}, world_size=2)
    text = str(report)
    assert "exact: all" in text
    assert "more are exact, none with a larger error" in text
    assert "4e-11 relative, since the model computes in float64" in text
    assert repr(report) == "<CheckReport: Llama, exact>"
    facts = json.loads(json.dumps(report.as_dict()))
    assert facts["exact"] is True
    assert facts["rows"][0].keys() == {"what", "norm", "noise", "absolute", "relative", "verdict", "where"}


def test_the_model_and_the_random_state_stay_as_they_are():
    model = llama()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    with torch.inference_mode():
        assert sp.check(model, (IDS,), {"labels": IDS}, world_size=2).exact
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_wrong_rule_is_a_row(wrong_flip):
    report = sp.check(Small(lambda x: x.flip(1)), (torch.randn(2, 9, 4),), world_size=3)
    assert not report.exact
    wrong = {row.what: row for row in report.rows if not row.exact}
    assert "output" in wrong
    assert wrong["output"].relative > 0.1
    assert "d outputs / d linear.weight" in wrong
    assert "NOT exact" in str(report)
    assert "WRONG" in str(report)


def test_a_wrong_gradient_alone_is_a_row(monkeypatch):
    """The values are right; the gradient of the table is scaled by how often an id occurs, on one rank."""
    monkeypatch.setitem(rule_table.TABLE, "aten.embedding", by_pattern("n! d!, ... -> ... d"))
    report = sp.check(nn.Embedding(61, 4, scale_grad_by_freq=True), (IDS,), world_size=2)
    assert [row.what for row in report.rows if not row.exact] == ["d outputs / d weight"]


def test_a_partial_sum_that_is_taken_for_whole(monkeypatch):
    def rule(case: Case) -> Ruling:
        return unary(case, Partial())

    monkeypatch.setitem(rule_table.TABLE, "aten.prod", rule)
    report = sp.check(Small(lambda x: x.prod(1)), (torch.randn(2, 9, 4),), world_size=2)
    assert not report.exact


def test_gradients_of_inputs_are_compared(wrong_flip):
    x = torch.randn(2, 9, 4, requires_grad=True)
    report = sp.check(Small(), (x,), world_size=2)
    assert report.exact
    assert "d outputs / d x" in {row.what for row in report.rows}
    assert not sp.check(Small(lambda x: x.flip(1)), (x,), world_size=2).exact


def test_a_refused_model_is_refused():
    with pytest.raises(sp.UnsupportedModelError, match=r"aten\.flip"):
        sp.check(Small(lambda x: x.flip(1)), (torch.randn(2, 9, 4),))


def test_a_program_that_fails_where_the_model_does_not(monkeypatch):
    def rule(case: Case) -> Ruling:
        return replace(unary(case, case.placement), arguments={1: [0, 7, 4]})

    monkeypatch.setitem(rule_table.TABLE, "aten.expand", rule)
    with pytest.raises(sp.ValidationError, match=r"Small fails in a world of 2: RuntimeError(.|\n)*report"):
        sp.check(Small(lambda x: x.expand(2, -1, 4)), (torch.randn(2, 9, 4),), world_size=2)


def test_a_model_that_fails_on_the_elements():
    def way(x: Tensor) -> Tensor:
        return torch.ops.aten.logit(x.sigmoid()) if torch.compiler.is_exporting() else x / None

    with pytest.raises(sp.InputError, match=r"Small itself fails on inputs drawn from the example: TypeError"):
        sp.check(Small(way), (torch.randn(2, 9, 4),))


def test_lengths_that_are_asked_for():
    model = GPT(GPTConfig(vocab_size=61, max_length=16, layers=1, heads=2, width=8))
    assert sp.check(model, (IDS,), lengths=(7, 16), world_size=3).lengths == (7, 16)
    assert sp.check(model, (IDS,), world_size=8).lengths == (15, 16)
    with pytest.raises(sp.InputError, match=r"lengths \[17\] cannot be tried on 3 ranks(.|\n)*from 3 to 16"):
        sp.check(model, (IDS,), lengths=(17,), world_size=3)


def test_a_meta_model_has_no_values():
    with pytest.raises(sp.InputError, match=r"meta device(.|\n)*small configuration"):
        sp.check(llama().to("meta"), (IDS,))


def test_a_model_that_cannot_be_copied():
    model = Small()
    model.derived = model.linear.weight * 2
    with pytest.raises(sp.InputError, match="Small cannot be copied"):
        sp.check(model, (torch.randn(2, 9, 4),))


def test_a_parallelized_model_and_an_empty_world():
    with pytest.raises(sp.StrategyError, match="parallelized already"):
        sp.check(sp.parallelize(llama()), (IDS,))
    with pytest.raises(sp.StrategyError, match="a world of 0 ranks"):
        sp.check(llama(), (IDS,), world_size=0)


@pytest.mark.parametrize("strategy", ["usp", "usp_zigzag", "double_ring"])
def test_meshes_of_two_axes(strategy):
    report = sp.check(llama(), (IDS,), {"labels": IDS}, strategy=strategy, world_size=(2, 3))
    assert report.exact, report
    assert report.world == 6


@pytest.mark.parametrize("strategy", ["usp", "double_ring"])
def test_dropout_on_meshes_of_two_axes(strategy):
    """Compared with a world of one, whose mesh has two axes too."""
    model, x = Small(lambda x: F.dropout(x, 0.3)), torch.randn(2, 12, 4)
    report = sp.check(model.train(), (x,), strategy=strategy, world_size=(2, 2))
    assert report.exact, report


def test_own_precision_widens_the_tolerance():
    report = sp.check(llama(), (IDS,), {"labels": IDS}, dtype=None, world_size=2)
    assert report.exact
    assert report.precision == "float32"
    report = sp.check(Small(lambda x: x.float().exp().to(x.dtype)), (torch.randn(2, 9, 4),), world_size=2)
    assert report.precision == "float32"
    assert report.exact


def test_tensors_that_are_plain_attributes_follow_the_dtype():
    model = Holder(torch.randn(4))
    assert sp.check(model, (torch.randn(2, 9, 4),), world_size=2).exact
    assert model.table.dtype == torch.float32


class Holder(nn.Module):
    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(4, 4), table

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) @ torch.diag(self.table)


def test_nothing_finite_is_not_exact():
    labels = torch.full_like(IDS, -100)
    report = sp.check(llama(), (IDS,), {"labels": labels}, world_size=2)
    assert not report.exact
    assert {row.verdict for row in report.rows if row.what == "loss"} == {"nothing finite to compare"}


def test_the_caller_may_be_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        report = sp.check(llama(), (IDS,), {"labels": IDS}, world_size=2)
    assert report.exact
    assert report.precision == "float64"


@pytest.mark.parametrize("inputs", ["global", "local"])
def test_validate_runs_once_for_each_capture(inputs, monkeypatch):
    model, x = Small(F.gelu), torch.randn(2, 12, 4)
    calls = []
    monkeypatch.setattr("sp.module.check_call", lambda *a, **k: calls.append(k) or sp.validation.check_call(*a, **k))

    def rank(group):
        parallel = sp.parallelize(copy.deepcopy(model), mesh=group, inputs=inputs, compile=False, validate=True)
        for length in (12, 6):
            mine = parallel.layout.shard(x[:, :length], 1) if inputs == "local" else x[:, :length]
            torch.testing.assert_close(parallel(mine), model(x[:, :length]))

    run_ranks(3, rank)
    assert [call["length"] for call in calls] == [12] * 3


def test_validate_compares_whole_gradients_whoever_sums_them():
    model, x = Small(F.gelu), torch.randn(2, 12, 4)

    def rank(group):
        parallel = sp.parallelize(copy.deepcopy(model), mesh=group, compile=False, validate=True, sync_gradients=False)
        torch.testing.assert_close(parallel(x), model(x))

    run_ranks(2, rank)


def test_validate_raises_on_all_ranks_alike(wrong_flip):
    model = Small(lambda x: x.flip(1))

    def rank(group):
        parallel = sp.parallelize(model, mesh=group, compile=False, validate=True)
        with pytest.raises(sp.ValidationError) as caught:
            parallel(torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0)))
        assert not parallel.executables
        return str(caught.value)

    messages = run_ranks(3, rank)
    for message in messages:
        assert "does not compute what the model computes" in message
        assert "do not train with it" in message
        assert "WRONG" in message


def test_terms_that_cancel_are_noise():
    """A mean of differences to the mean: zero, but for rounding that each order of summation makes differently."""
    x = torch.randn(2, 9, 4)
    report = sp.check(Small(lambda x: (x.sum(), (x - x.mean(1, keepdim=True)).sum())), (x,), world_size=3)
    assert report.exact
    (row,) = (row for row in report.rows if row.what == "1")
    assert row.norm < 1e-14
    assert 0 < row.noise < 1e-13


def test_noise_hides_no_mistake(wrong_flip):
    report = sp.check(Small(lambda x: (x - x.flip(1)).cumsum(-1)), (torch.randn(2, 9, 4),), world_size=3)
    assert not report.exact
    assert all(row.absolute > 1e9 * row.noise for row in report.rows if not row.exact)


def test_caches_are_compared_whole():
    """Unasked, a model's keys and values stay on their ranks."""
    report = sp.check(decoder("Llama"), (prompt(9),), {"use_cache": True}, world_size=2)
    assert report.exact
    assert sum("keys" in row.what or "values" in row.what for row in report.rows) >= 4


class Sly(nn.Module):
    """Another model while it is traced."""

    def __init__(self, ways: tuple) -> None:
        super().__init__()
        self.linear, self.ways = nn.Linear(4, 4), ways

    def forward(self, x: Tensor):
        return self.ways[torch.compiler.is_exporting()](self.linear(x))


@pytest.mark.parametrize(
    ("plain", "traced", "verdict"),
    [
        (lambda y: y.detach(), lambda y: y, "d outputs / d linear.weight: the plain model has none"),
        (lambda y: y, lambda y: y.detach(), "d outputs / d linear.weight: missing"),
        (lambda y: y, lambda y: y.float(), "output: torch.float32, not torch.float64"),
        (lambda y: (y, y > 0), lambda y: (y, y > 1), "1: WRONG"),
    ],
)
def test_a_difference_of_every_kind_is_a_row(plain, traced, verdict):
    report = sp.check(Sly((plain, traced)), (torch.randn(2, 9, 4),), world_size=2)
    assert verdict in [f"{row.what}: {row.verdict}" for row in report.rows]
    assert not report.exact


@pytest.mark.parametrize("traced", [lambda y: (y, 4), lambda y: (y, None), lambda y: (y, y), lambda y: [y, 3]])
def test_other_constants_and_containers_are_no_exact_answer(traced):
    with pytest.raises(sp.ValidationError, match=r"transformed Sly returns (.|\n)*needed: what the model returns: "):
        sp.check(Sly((lambda y: (y, 3), traced)), (torch.randn(2, 9, 4),), world_size=2)
