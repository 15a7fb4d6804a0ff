"""strategy="auto": chosen at the first capture by all ranks alike, kept, reported, and exact."""

import copy
import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import sp
from sp.costs import MACHINES
from sp.models import GPT, Encoder, EncoderConfig, GPTConfig, Llama, LlamaConfig
from sp.testing import run_mesh, run_ranks
from sp.testing.compare import errors_between, run_once

pytestmark = pytest.mark.usefixtures("one_capture")

# Where merging, or computing, is all that counts.
SLOW_KERNEL = replace(MACHINES["cpu"], name="slow kernel", attention_flops=1e6, tile=(1, 1), memory_bandwidth=1e30)
SLOW_MERGES = replace(
    MACHINES["cpu"], name="slow merges", attention_flops=1e9, tile=(1, 1), merge_passes=1e6, ranks_per_node=64
)


def llama(heads=2, dtype=torch.float64):
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=2, heads=heads, kv_heads=heads, width=16)).to(dtype)


def ids(length, rows=2):
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(length))


def auto(model, calls, machine):
    """What a rank of `mesh` chooses, and its errors against the model itself."""
    references = [run_once(model, (each,), {"labels": each}) for each in calls]

    def rank(mesh):
        parallel = sp.parallelize(copy.deepcopy(model), "auto", mesh=mesh, compile=False, machine=machine)
        runs = [run_once(parallel, (each,), {"labels": each}) for each in calls]
        errors = [errors_between(run, reference) for run, reference in zip(runs, references, strict=True)]
        return parallel.report().as_dict()["choice"]["chosen"], errors

    return rank


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [(SLOW_MERGES, {"ulysses"}), (SLOW_KERNEL, {"striped", "zigzag", "allgather"})],
    ids=["slow merges", "slow kernel"],
)
def test_a_whole_model_is_exact(machine, chosen):
    """2 heads for 3 ranks: one of them would be idle."""
    found = run_ranks(3, auto(llama(), [ids(17), ids(12)], machine))
    assert len({name for name, _ in found}) == 1
    assert found[0][0] in chosen
    for _, errors in found:
        assert all(each.within(1e-11) for each in errors), errors


def test_on_a_mesh_of_two_axes_what_takes_two_is_chosen():
    found = run_mesh((2, 2), auto(llama(), [ids(17)], SLOW_KERNEL))
    assert len({name for name, _ in found}) == 1
    assert sp.STRATEGIES[found[0][0]].takes(2)
    for _, errors in found:
        assert all(each.within(1e-11) for each in errors), errors


def test_ranks_that_choose_otherwise_do_not_run():
    model = llama()  # seeds race between threads

    def rank(group):
        machine = SLOW_MERGES if group.rank() == 1 else replace(SLOW_MERGES, merge_passes=0.0, link_bandwidth=1e15)
        parallel = sp.parallelize(model, "auto", mesh=group, compile=False, machine=machine)
        with pytest.raises(sp.RankMismatchError, match="the ranks disagree about the program"):
            parallel(ids(256))
        return parallel.options.strategy.name

    assert len(set(run_ranks(3, rank))) == 2


def test_there_is_no_layout_before_the_choice_and_the_same_ever_after():
    parallel = sp.parallelize(llama(), "auto", compile=False, machine=SLOW_MERGES)
    with pytest.raises(sp.SpError, match=r"(?s)not been chosen yet.*remedy: call the model once, or pass example_args"):
        _ = parallel.layout
    parallel(ids(8))
    chosen = parallel.options.strategy
    assert parallel.layout.layout.name == chosen.layout
    parallel.eval()
    with torch.no_grad():
        parallel(ids(64), labels=ids(64))  # another capture
    assert len(parallel.executables) == 2
    assert {each.program.strategy for each in parallel.executables} == {chosen}
    assert {each.captured.strategy for each in parallel.executables} == {chosen}
    assert "auto: " in str(parallel.report())


def test_shards_go_in_once_the_choice_is_made():
    whole = torch.randn(1, 12, 16, dtype=torch.float64)
    torch.manual_seed(0)
    trunk = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).double()
    expected = trunk(whole)

    def rank(group):
        parallel = sp.parallelize(
            copy.deepcopy(trunk), "auto", mesh=group, inputs="local", example_args=(whole,), compile=False
        )
        return (parallel(parallel.layout.shard(whole, 1)) - expected).abs().max().item()

    assert max(run_ranks(2, rank)) < 1e-12
    parallel = sp.parallelize(trunk, "auto", inputs="local", compile=False)
    with pytest.raises(sp.SpError, match="not been chosen yet"):
        parallel(whole)


def test_inspect_shows_what_was_compared():
    each = ids(64)
    report = sp.inspect(llama(), (each,), {"labels": each}, strategy="auto", world_size=4, machine="h100")
    text, facts = str(report), report.as_dict()
    name = facts["strategy"]["name"]
    assert re.search(rf"^auto: {name}, the fastest of \d+ strategies; next \w+, (\+\d|which takes as long)", text, re.M)
    assert "64 tokens on 4 ranks of h100; Llama: 2 attentions" in text
    rows = facts["choice"]["estimates"]
    assert min(rows, key=lambda row: row["seconds"])["strategy"] == name == facts["choice"]["chosen"]
    assert json.loads(json.dumps(facts)) == facts
    text = str(sp.inspect(llama(), (each,), strategy="auto", world_size=(2, 2), machine="h100"))
    assert re.search(r"^auto: (usp|usp_zigzag|double_ring), the fastest of 3 strategies", text, re.M)
    assert "ring, striped, zigzag, allgather, ulysses: takes a mesh of one axis" in text
    named = sp.inspect(llama(), (each,), {"labels": each}, strategy=name, world_size=4)
    assert named.graph_table() == report.graph_table()
    assert named.as_dict()["choice"] is None
    assert "auto: " not in str(named)


def test_the_choice_says_what_is_left_where_memory_is_scarce():
    each = ids(512)
    plain = sp.estimate(llama(), 512, 4, SLOW_MERGES, args=(each,))
    memories = sorted(one.memory for one in plain.found)
    scarce = replace(SLOW_MERGES, memory=memories[-1] - 1)
    text = str(sp.inspect(llama(), (each,), strategy="auto", world_size=4, machine=scarce))
    assert re.search(r"^auto: \w+, the fastest of \d strategies that fit", text, re.M)
    with pytest.raises(sp.StrategyError, match="no strategy fits: 512 tokens on 4 ranks take"):
        sp.inspect(llama(), (each,), strategy="auto", world_size=4, machine=replace(SLOW_MERGES, memory=1.0))


def test_encoders_and_decoders_are_chosen_for_by_their_masks():
    """Where only work counts, a contiguous ring is as good as any for an encoder, and not for a decoder."""
    free = {"link_bandwidth": 1e30, "link_latency": 0.0, "memory_bandwidth": 1e30, "ranks_per_node": 64}
    ideal = replace(MACHINES["h100"], tile=(1, 1), banded=1.0, **free)
    each = ids(64)
    encoder = Encoder(EncoderConfig(vocab_size=61, max_length=64, layers=1, heads=2, width=16))
    decoder = GPT(GPTConfig(vocab_size=61, max_length=64, layers=1, heads=2, width=16))
    both, causal = (sp.estimate(model, 64, 2, ideal, args=(each,)) for model in (encoder, decoder))
    assert both["ring"].seconds == pytest.approx(both["zigzag"].seconds)
    assert causal["ring"].seconds > causal["zigzag"].seconds


def test_a_model_is_estimated_at_any_length_and_world():
    with torch.device("meta"):
        model, each = llama(), ids(16)
    found = sp.estimate(model, 2**20, 4096, "h100", args=(each,), kwargs={"labels": each}, strategies=["zigzag"])
    assert (found.length, found.world) == (2**20, 4096)
    assert [one.strategy.name for one in found.found] == ["zigzag"]
    assert found.workload.attentions[0].queries == 2**20
    local = sp.estimate(model, 2**20, 4096, "h100", args=(each,), outputs="local", strategies=["zigzag"])
    assert local["zigzag"].outputs.sent == 0
    assert found["zigzag"].outputs.sent == 4095 * 256 * 2 * 61 * 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda model, x: sp.estimate(model, 64, 2, "cpu", args=(x,), causal=False),
            "recompute and sharding are for a",
        ),
        (lambda model, x: sp.estimate(model, 1, 1, "cpu", args=(x,), kwargs={"labels": x}), "does not hold for a"),
        (lambda model, x: sp.inspect(model, (x,), strategy="auto", world_size=17), "16 tokens for 17 ranks"),
        (lambda model, x: sp.inspect(model, (x,), strategy="auto", machine="x100"), "there is no machine 'x100'"),
        (lambda model, x: sp.parallelize(model, "auto", machine="x100"), "there is no machine 'x100'"),
        (lambda model, x: sp.check(model, (x,), strategy="auto"), "nothing to check of 'auto'"),
    ],
)
def test_what_cannot_be_chosen(call, message):
    with pytest.raises(sp.SpError, match=message):
        call(llama(), ids(16))
