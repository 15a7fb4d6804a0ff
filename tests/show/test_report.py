"""The report: golden text, and its numbers."""

import json
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.models import GPT, GPTConfig, Llama, LlamaConfig
from sp.program import Insertion
from sp.show import Report
from sp.show.facts import insertion_kinds

Golden = Callable[[str, str], None]
Inspect = Callable[..., Report]


@pytest.fixture(scope="module")
def llama() -> Report:
    ids = torch.zeros(1, 4099, dtype=torch.long)
    model = Llama(LlamaConfig(layers=4, heads=8, kv_heads=2, width=64, gqa="repeat_kv"))
    return sp.inspect(model, (ids,), {"labels": ids}, strategy="ring", world_size=8)


def test_report_prints_as_before(llama: Report, golden: Golden) -> None:
    golden("show/report", str(llama))


def test_insertions_print_as_before(llama: Report, golden: Golden) -> None:
    golden("show/insertions", llama.insertions_table())


def test_dict_is_plain_data(llama: Report) -> None:
    facts = llama.as_dict()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["strategy"] == {"name": "ring", "layout": "contiguous", "transport": "ring"}
    assert (facts["world"], facts["length"]) == (8, 4099)
    assert sum(facts["local_lengths"]) == 4099
    assert set(facts["local_lengths"]) == {512, 513}
    assert facts["outputs"] == [
        {"name": "logits", "dim": 1, "local": False, "gathered": 4099 * 256 * 4 * 7 // 8},
        {"name": "loss", "dim": None, "local": False, "gathered": 0},
    ]


@pytest.mark.parametrize(
    ("strategy", "layout", "axes"),
    [("usp", "striped/4", {"ring": 2, "ulysses": 4}), ("double_ring", "striped", {"outer": 2, "inner": 4})],
)
def test_two_axes_are_named(strategy: str, layout: str, axes: dict[str, int]) -> None:
    ids = torch.zeros(1, 64, dtype=torch.long)
    model = Llama(LlamaConfig(layers=2, heads=4, kv_heads=2, width=32))
    report = sp.inspect(model, (ids,), strategy=strategy, world_size=(2, 4))
    facts = report.as_dict()
    assert (facts["world"], facts["axes"], facts["strategy"]["layout"]) == (8, axes, layout)
    (outer, _), (inner, _) = axes.items()
    assert f"8 ranks = {outer} 2 × {inner} 4" in str(report)
    (attention,) = facts["attentions"]
    slow = 2 * (max(attention["outer_forward"]) + max(attention["outer_backward"]))
    assert f"Of both, {slow / 2**10:.1f} KiB along the outer axis, {outer}." in str(report)
    assert ("world=2" if strategy == "usp" else "world=8") in report.plan_grid()


def test_attention_facts(llama: Report) -> None:
    (attention,) = llama.as_dict()["attentions"]
    assert (attention["count"], attention["mask"], attention["heads"], attention["kv_heads"]) == (4, "causal", 8, 2)
    assert sum(attention["area"]) == 8 * 4099 * 4100 // 2
    elements = 2 * 2 * 8  # keys and values, 2 heads of width 8, per token
    assert max(attention["sent_forward"]) == (4099 - 512) * elements * 4
    assert max(attention["sent_backward"]) == 2 * (4099 - 512) * elements * 4  # they, and gradients of the others'
    assert "llama.py" in attention["source"]


def test_printed_numbers_are_those_of_the_dict(llama: Report) -> None:
    (attention,) = llama.as_dict()["attentions"]
    row = next(line for line in str(llama).splitlines() if line.startswith("blocks"))
    share = [f"{100 * part / sum(attention['area']):.1f}" for part in (min(attention["area"]), max(attention["area"]))]
    assert f"{share[0]} / 12.5 / {share[1]} %" in row
    assert f"{100 * attention['balance']:.1f} %" in row
    assert f"{max(attention['sent_forward']) / 1024:.0f} KiB" in row


def test_insertions_are_counted_by_kind_and_reason(llama: Report) -> None:
    kinds = insertion_kinds(llama.program)
    nodes = [str(node.target) for node in llama.program.graph.nodes]
    assert sum(kind.count for kind in kinds) == len(llama.program.insertions)
    for op in ("sp.shard", "sp.unshard", "sp.replicate_all", "sp.reduce"):
        assert sum(kind.count for kind in kinds if kind.op == op) == nodes.count(f"{op}.default")
    assert len({(kind.op, kind.why) for kind in kinds}) == len(kinds)
    assert [kind.count for kind in kinds if kind.op == "sp.replicate_all"] == [1, 4, 1]


def test_reason_names_the_value_only_where_it_stands_alone(llama: Report) -> None:
    """A value called `to` or `in` must not tear words apart."""
    planted = Insertion("sp.shard", "to", "to goes together with total")
    program = llama.program.__class__(**{**vars(llama.program), "insertions": (planted,)})
    assert [kind.why for kind in insertion_kinds(program)] == ["it goes together with total"]


def test_no_symbol_of_torch_is_left(llama: Report) -> None:
    text = f"{llama}\n{llama.insertions_table()}\n{json.dumps(llama.as_dict())}"
    assert not re.search(r"\bs\d+\b", text)


def test_bounds_of_a_position_table_are_shown() -> None:
    ids = torch.zeros(1, 16, dtype=torch.long)
    text = str(sp.inspect(GPT(GPTConfig(max_length=64, layers=1, heads=2, width=16)), (ids,), world_size=2))
    assert re.search(r"captured for +lengths from 2 to 64", text)


def test_local_in_and_out() -> None:
    ids = torch.zeros(1, 16, dtype=torch.long)
    model = Llama(LlamaConfig(layers=1, heads=2, kv_heads=1, width=16))
    parallel = sp.parallelize(model, inputs="local", outputs="local", compile=False, example_args=(ids,))
    report = parallel.report()
    assert report.as_dict()["inputs"] == [{"name": "ids_BS", "dim": 1, "local": True}]
    assert report.as_dict()["outputs"] == [{"name": "logits", "dim": 1, "local": True, "gathered": 0}]
    assert re.search(r"inputs +ids_BS \(local, dim 1\)\noutputs +logits \(local, dim 1\)", str(report))
    assert re.search(r"world +1 rank\n", str(report))


def test_model_without_attention() -> None:
    class Pointwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(9, 8)

        def forward(self, ids: Tensor) -> Tensor:
            return self.tokens(ids).relu()

    report = sp.inspect(Pointwise(), (torch.zeros(1, 16, dtype=torch.long),), world_size=2)
    assert "no attention along the sequence" in str(report)
    assert report.plan_grid() == ""
    assert report.as_dict()["attentions"] == []


def test_heads_that_are_dealt(inspect: Inspect) -> None:
    """4 of them to 3 ranks: each has the whole sequence for its own."""
    report = inspect("llama", strategy="ulysses", world=3)
    assert "ulysses = contiguous layout + alltoall transport" in str(report)
    (row,) = [line for line in str(report).splitlines() if line.startswith("blocks")]
    assert "25.0 / 33.3 / 50.0 %" in row
    head, _, title, rank = report.plan_grid().splitlines()
    assert head == "every rank, for its own heads:"
    assert title.split()[:4] == ["contiguous", "causal", "world=1", "local=32"]
    assert rank.split() == ["rank", "0", "causal", "100.0", "%"]


def test_parallel_module_reports_what_inspect_reports(inspect: Inspect) -> None:
    ids = torch.zeros(2, 32, dtype=torch.long)
    model = Llama(LlamaConfig(layers=2, heads=4, kv_heads=2, width=32, gqa="repeat_kv"))
    parallel = sp.parallelize(model, example_args=(ids,), example_kwargs={"labels": ids}, compile=False)
    report = parallel.report()
    assert report.graph_table() == inspect("llama").graph_table()
    assert report.captured.graph_module is parallel.captured
    assert repr(report) == "<Report: striped, world 1, 32 tokens>"
