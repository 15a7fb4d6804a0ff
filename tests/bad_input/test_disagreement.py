"""Ranks that disagree about model, options or versions: each says what which rank has, before any data is exchanged."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import sp
from sp.handshake import Handshake
from sp.runtime.agreement import Statement, _read, check_agreement, exchange_statements
from sp.runtime.differences import differing_lines, shortened
from sp.runtime.world import find_world
from sp.testing.ranks import run_ranks
from sp.values import FIRST, LATEST, NEW, Values, to_be_compared
from tests.bad_input.harness import IDS, LABELS, decoder, proper

MODEL = decoder()


def messages(world: int, parallelized: Callable[[Any], Any]) -> list[str]:
    """What each rank's RankMismatchError says."""

    def rank(group: Any) -> str:
        with pytest.raises(sp.RankMismatchError) as caught:
            proper(parallelized(group))
        return str(caught.value)

    return run_ranks(world, rank)


def of_models(models: list[nn.Module], **options: Any) -> list[str]:
    def parallelized(group: Any) -> Any:
        return sp.parallelize(copy.deepcopy(models[group.rank()]), mesh=group, **{"compile": False, **options})

    return messages(len(models), parallelized)


def named(**words: Any) -> nn.Module:
    model = decoder()
    for name, value in words.items():
        setattr(model, name, value)
    return model


class Other(type(MODEL)):
    """The same under another name, with a forward that does something else."""

    def forward(self, ids: Any, labels: Any = None, mask: Any = None, scale: Any = 1.0) -> Any:
        return tuple(each * 2 for each in super().forward(ids, labels, mask, scale))


def other() -> nn.Module:
    torch.manual_seed(0)
    return Other().double()


def frozen() -> nn.Module:
    model = decoder()
    model.head.weight.requires_grad_(False)
    return model


def another_buffer() -> nn.Module:
    model = decoder()
    model.weights += 1
    return model


MODELS: Mapping[str, tuple[Callable[[], nn.Module], str, str]] = {
    "a seed": (lambda: decoder(1), "what parameters and buffers hold", "rank 1: tokens.weight torch.float64 [31, 8] "),
    "a layer more": (lambda: decoder(layers=2), "which gradients there will be", "rank 1: layers.1.weight trains"),
    "heads": (lambda: decoder(heads=4), "the program", "rank 1: "),
    "kv heads": (
        lambda: decoder(kv_heads=1),
        "what parameters and buffers hold",
        "rank 1: kv.weight torch.float64 [8, 8]",
    ),
    "a width": (lambda: decoder(width=16), "what parameters and buffers hold", "tokens.weight torch.float64 [31, 16]"),
    "a class": (other, "the program", "rank 1: "),
    "a dtype": (
        lambda: decoder().float(),
        "how the model is called",
        "rank 1: parameters and buffers: ['torch.float32 cpu']",
    ),
    "a mode": (lambda: decoder().eval(), "how the model is called", "rank 1: mode: eval"),
    "what trains": (frozen, "which gradients there will be", "rank 1: head.weight is frozen"),
    "a buffer": (another_buffer, "what parameters and buffers hold", "rank 1: weights torch.float64 [8] "),
}


@pytest.mark.parametrize("what", MODELS)
def test_models_that_differ(what: str) -> None:
    make, about, shown = MODELS[what]
    for message in of_models([MODEL, make()]):
        assert f"the ranks disagree about {about}: rank 0: " in message
        assert shown in message
        assert "needed: the same on all 2 ranks" in message
        assert "remedy: " in message


def test_strategies_that_differ() -> None:
    def parallelized(group: Any) -> Any:
        strategy = "ring" if group.rank() == 2 else "striped"
        return sp.parallelize(copy.deepcopy(MODEL), strategy, mesh=group, compile=False)

    for message in messages(3, parallelized):
        assert "the ranks disagree about the program: rank 0: Strategy(name='striped'" in message
        assert "rank 2: Strategy(name='ring'" in message


OPTIONS: Mapping[str, tuple[dict[str, Any], str]] = {
    "inputs": ({"inputs": "local"}, "rank 1: inputs='local'"),
    "outputs": ({"outputs": "local"}, "outputs='local'"),
    "compile": ({"compile": {"backend": "eager"}}, "compile=[(\"'backend'\", \"'eager'\")]"),
    "kernel": ({"kernel": "dense"}, "kernel='dense'"),
    "validate": ({"validate": True}, "validate=True"),
    "checkpoint": ({"checkpoint": True}, "checkpoint=True"),
    "sequence_dim": (
        {"sequence_dim": {"ids": 1, "labels": 1}},
        "rank 1: inputs='global', outputs='global', sequence_dim=[",
    ),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_differ(option: str) -> None:
    options, shown = OPTIONS[option]

    def parallelized(group: Any) -> Any:
        mine = options if group.rank() == 1 else {}
        return sp.parallelize(copy.deepcopy(MODEL), mesh=group, **{"compile": False, **mine})

    for message in messages(2, parallelized):
        assert "the ranks disagree about the options of sp.parallelize: rank 0: inputs='global'" in message
        assert shown in message


def test_gradients_that_others_sum_on_one_rank() -> None:
    def parallelized(group: Any) -> Any:
        return sp.parallelize(copy.deepcopy(MODEL), mesh=group, compile=False, sync_gradients=group.rank() == 0)

    for message in messages(2, parallelized):
        assert "left to others or no_sync" in message


def said(statements: list[Statement]) -> list[str]:
    def rank(group: Any) -> str:
        world = find_world(group.group_name)
        with pytest.raises(sp.RankMismatchError) as caught:
            check_agreement(exchange_statements(world, statements[world.rank], torch.device("cpu")), world.rank)
        return str(caught.value)

    return run_ranks(len(statements), rank)


@pytest.mark.parametrize("theirs", ["sp 0.1.0, torch 2.12.0", "sp 0.2.0, torch 2.13.0"])
def test_versions_that_differ(theirs: str) -> None:
    """Before what rank 1 has met, which may come of its version."""
    mine = Statement(versions="sp 0.1.0, torch 2.13.0")
    for message in said([mine, replace(mine, versions=theirs, error="it does not work")]):
        assert (
            f"disagree about the versions of the packages: rank 0: sp 0.1.0, torch 2.13.0; rank 1: {theirs}" in message
        )
        assert "install the same versions on every machine" in message


def test_a_version_that_says_other_things() -> None:
    mine = Statement(versions="sp 0.1.0, torch 2.13.0")
    old = _read(b'{"call": "7", "colour": "red"}', mine)
    assert old == Statement(versions="an older version of sp", call="7")
    assert _read(b'{"call": "7"}', Statement()).versions == ""


def test_hash_seeds_may_differ() -> None:
    """Text of sets stands in no order of theirs."""
    one = decoder()
    one.names = {"ring", "striped", "zigzag", "ulysses"}
    two = copy.deepcopy(one)
    two.names = {"ulysses", "zigzag", "striped", "ring"}
    ready = sp.inspect(one, (IDS, LABELS), world_size=2), sp.inspect(two, (IDS, LABELS), world_size=2)
    assert ready[0].program.digest() == ready[1].program.digest()


def test_the_first_lines_that_differ() -> None:
    assert differing_lines(["a\nb\nc", "a\nx\nc"]) == ["b", "x"]
    assert differing_lines(["a", "a\nb"]) == ["(nothing more)", "b"]
    one, two = differing_lines(["y" * 500 + "1" + "z" * 500, "y" * 500 + "2" + "z" * 500])
    assert one.startswith("…yyy")
    assert (one[41], two[41], len(one)) == ("1", "2", 161)


def test_long_words_that_differ_at_their_end_still_differ() -> None:
    one, two = (shortened("x" * 900 + end, 600) for end in "ab")
    assert one != two
    assert len(one) < 640
    assert shortened("short", 600) == "short"


def test_when_values_are_compared() -> None:
    tensors = {"a": torch.zeros(3), "b": torch.ones(2)}
    values = Values()
    assert values.changes(tensors, "s") == FIRST
    values.equal(tensors, "s")
    assert values.changes(tensors, "s") == "0"
    assert values.changes(tensors, "another state") == FIRST
    tensors["a"].add_(1)
    assert values.changes(tensors, "s") == "1"
    values.equal(tensors, "s")  # from here on a call goes by
    replaced = {**tensors, "b": torch.ones(2)}
    assert values.changes(replaced, "s") == NEW
    values.equal(replaced, "s")
    assert values.changes(tensors, "s") == f"{NEW} waits"


def test_how_late_a_write_is_found() -> None:
    """Where there is reason at every call: at the first, third, seventh, … after a comparison, then at each 64th."""
    ranks, compared = [(Values(), {"a": torch.zeros(3)}) for _ in range(2)], list[int]()
    for call in range(320):
        ranks[0][1]["a"].add_(1)
        if to_be_compared([values.changes(tensors, "s") for values, tensors in ranks]):
            compared.append(call)
            for values, tensors in ranks:
                values.equal(tensors, "s")
    assert [after - before for before, after in pairwise(compared)] == [1, 1, 3, 7, 15, 31, 63, LATEST, LATEST, LATEST]


def test_writes_that_torch_does_not_count() -> None:
    """As docs/reliability/input.md says."""
    tensors, values = {"a": torch.zeros(3)}, Values()
    values.equal(tensors, "s")
    tensors["a"].data.add_(1)
    tensors["a"].numpy()[:] = 2
    assert values.changes(tensors, "s") == "0"
    tensors["a"].detach().add_(1)
    assert values.changes(tensors, "s") == "1"


def test_a_write_of_one_rank_is_found_at_last() -> None:
    """After writes of all ranks alike, and many calls."""

    def rank(group: Any) -> tuple[int, str]:
        parallel = sp.parallelize(copy.deepcopy(MODEL), mesh=group, compile=False)
        values = parallel.accord.values
        proper(parallel)
        values.patience = LATEST  # as after many comparisons
        if group.rank() == 1:
            with torch.no_grad():
                parallel.plain.head.weight.add_(1)
        for call in range(1, 2 * LATEST):
            try:
                parallel.accord.on_call(
                    Handshake(find_world(group.group_name), torch.device("cpu")),
                    ((IDS, LABELS), {}),
                    parallel.options,
                    parallel.executables,
                    None,
                )
            except sp.RankMismatchError as error:
                return call, str(error)
        return 0, "nothing"

    for call, message in run_ranks(2, rank):
        assert call <= LATEST
        assert "the ranks disagree about what parameters and buffers hold: rank 0: head.weight" in message


def test_who_has_reason_to_compare_values() -> None:
    assert to_be_compared([FIRST, "0"])
    assert to_be_compared(["1", "0"])
    assert to_be_compared([f"{NEW} waits", "0"])
    assert not to_be_compared(["2", "2"])
    assert not to_be_compared(["2 waits", "0 waits"])


def test_parameters_without_contents() -> None:
    with torch.device("meta"):
        unreal = decoder()

    def rank(group: Any) -> str:
        with pytest.raises(sp.SpError) as caught:
            proper(sp.parallelize(unreal, mesh=group, compile=False))
        return str(caught.value)

    for message in run_ranks(2, rank):
        assert "of the model is on the meta device" in message
