"""Outputs that are not asked for: neither gathered nor computed, and None in the model's own output."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import sp
from sp.errors import StrategyError, UnsupportedModelError
from sp.models import Llama, LlamaConfig
from sp.passes import pipeline
from sp.passes.fxtools import op_name
from sp.passes.output_forms import Drop
from sp.program import Program
from sp.testing.ranks import run_ranks
from tests.passes.exact import check
from tests.passes.programs import IDS_BS, Small, ops, program_of

pytestmark = pytest.mark.usefixtures("one_capture")

NONE = {"1": "none"}


def llama() -> Llama:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=1, heads=4, kv_heads=2, width=32)).double()


def two(m: Small, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The second needs an op that no rank can compute, and a sum over the ranks."""
    hidden = m.l(m.e(ids))
    return hidden.sum(1), hidden.flip(1) * hidden.mean()


def test_what_nobody_asks_for_is_neither_gathered_nor_computed_nor_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="flip"):
        program_of(two, passes=pipeline())
    program = program_of(two, passes=pipeline(outputs=NONE))
    assert [port.name for port in program.outputs] == ["0"]
    assert {"aten.flip", "aten.mul", "sp.unshard"}.isdisjoint(ops(program))
    assert ops(program).count("sp.reduce") == 1
    assert program.history[1].text == "not asked for: 1"


def test_what_is_left_is_exact() -> None:
    def forward(m: Small, ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = m.l(m.e(ids))
        return hidden.square().mean(), hidden @ m.p.T

    torch.manual_seed(0)
    model = Small(forward).double()
    program = program_of(model, IDS_BS, passes=pipeline(outputs=NONE))
    model.way = lambda m, ids: forward(m, ids)[0]
    check(model, program, [IDS_BS])


def gathers(program: Program) -> int:
    return sum(op_name(node) == "sp.unshard" for node in program.graph.nodes)


@pytest.mark.parametrize("compiled", [False, {"backend": "aot_eager"}])
def test_a_step_without_logits(compiled: object) -> None:
    """The loss needs the logits, so that they are computed; nobody gathers them."""
    ids, model = torch.randint(0, 61, (2, 11)), llama()
    models = [copy.deepcopy(model) for _ in range(3)]  # threads share the random numbers that make one
    model(ids, labels=ids).loss.backward()

    def rank(group: torch.distributed.ProcessGroup) -> float:
        mine = models[group.rank()]
        parallel = sp.parallelize(mine, mesh=group, outputs={"logits": "none"}, compile=compiled)  # type: ignore[arg-type]
        output = parallel(ids, labels=ids)
        assert output.logits is None
        output.loss.backward()
        assert gathers(parallel.executables[-1].program) == 0
        pairs = zip(mine.parameters(), model.parameters(), strict=True)
        return max(float((a.grad - b.grad).norm() / b.grad.norm()) for a, b in pairs)  # type: ignore[operator,union-attr]

    assert max(run_ranks(3 if not compiled else 1, rank)) < 1e-12


def test_the_report_says_what_a_gather_costs() -> None:
    ids = torch.zeros(2, 16, dtype=torch.long)
    whole, less = (
        sp.inspect(llama(), (ids,), {"labels": ids}, world_size=4, outputs=form)
        for form in ("global", {"logits": "none"})
    )
    assert "logits (global, dim 1, 5.7 KiB gathered), loss (no sequence)" in str(whole)
    assert [each["gathered"] for each in whole.as_dict()["outputs"]] == [16 * 61 * 8 * 3 // 4, 0]
    assert [each["name"] for each in less.as_dict()["outputs"]] == ["loss"]
    assert "logits" not in str(less).partition("inserted op")[0].partition("outputs")[2].partition("\n")[0]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"logitz": "none"}, "(?s)the model has no output 'logitz'.*names among: logits, loss"),
        ({"logits": "none", "loss": "none"}, "all outputs are 'none', and nothing would be computed"),
        ({"logits": "nobody"}, "(?s)cannot be 'nobody'.*'none' for an output by name"),
        ("none", "(?s)cannot be 'none'.*'global' or 'local'"),
    ],
)
def test_words_that_mean_nothing(outputs: object, message: str) -> None:
    ids = torch.zeros(2, 16, dtype=torch.long)
    with pytest.raises(StrategyError, match=message):
        sp.inspect(llama(), (ids,), {"labels": ids}, outputs=outputs)  # type: ignore[arg-type]


def test_a_cache_is_not_dropped_by_name() -> None:
    """Its parts make one object; whoever wants none says so to the model."""
    cached = program_of(lambda m, ids: (m.e(ids), m.e(ids)), passes=[])
    kept = replace(cached, outputs=(cached.outputs[0], replace(cached.outputs[1], kept="past_key_values")))
    with pytest.raises(StrategyError, match=r"the cache 'past_key_values' cannot be 'none'\n.*use_cache=False"):
        Drop({"past_key_values": "none"}).run(kept)
