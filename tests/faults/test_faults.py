"""One rank fails; every other rank raises an error that names it, the exchange and the step, before its timeout."""

from __future__ import annotations

import re

import pytest

from tests.faults.worlds import EVERYBODY, Fault, Outcome, Way, outcomes

TIMEOUT_S = 3.0
RING = Way("ring", (3,), bare=True)
USP = Way("usp", (2, 2), bare=True)
FSDP = Way("striped", (2, 2), fsdp=True)
WAYS = {
    "ring": Way("ring", (3,)),
    "striped": Way("striped", (4,)),
    "ulysses": Way("ulysses", (3,)),
    "allgather": Way("allgather", (3,)),
    "usp": Way("usp", (2, 2)),
    "double_ring": Way("double_ring", (2, 2)),
    "compiled": Way("striped", (2,), compile=True),
    "traced": Way("striped", (3,), compile={"backend": "aot_eager"}),
    "fsdp": FSDP,
}
ENDS = {
    "kill": ("dead",),
    "raise": ("IndexError",),
    "interrupt": ("KeyboardInterrupt",),
    "sleep": ("RankLostError",),
    "worker": ("RuntimeError", "ConnectionResetError", "EOFError"),  # the rank was just taking a tensor of it
}
HURRY_S = 2.5  # the machine does other things too


def check_survivors(found: list[Outcome], fault: Fault, within_s: float) -> list[str]:
    """All name the rank that failed, and say what they waited for; what they say."""
    assert found[fault.rank].kind in ENDS[fault.kind]
    others = [outcome for rank, outcome in enumerate(found) if rank != fault.rank]
    for each in others:
        assert each.kind == "RankLostError", each
        assert each.ranks == (fault.rank,), each
        assert each.text.startswith(f"rank {fault.rank} "), each
        waited = r"this rank, \d: waited \d+\.\d s for .*rank.* in: .+, exchange \d+ of its group; backend: "
        assert re.search(waited, each.text)
        assert "restart all ranks from the last checkpoint" in each.text
        assert each.seconds < within_s, each
    return [each.text for each in others]


@pytest.mark.parametrize("where", ["forward", pytest.param("backward", marks=pytest.mark.slow), "sum"])
def test_a_rank_that_is_killed_is_named(where: str) -> None:
    fault = Fault("kill", where, TIMEOUT_S)
    said = check_survivors(outcomes(RING, fault), fault, TIMEOUT_S)
    assert all(text.startswith("rank 1 is lost\n") for text in said)
    if where == "sum":
        assert all("in: a sum of gradients (all-reduce, 4 bytes)" in text for text in said)
        return
    for text in said:
        assert f"\n  during: attention {where}, contiguous layout over ring\n" in text
        assert re.search(r"step \d of \d \([\d,]+ bytes\)", text)
    assert any("\n  rank 2: waited " in text for text in said), "rank 0 hears it of rank 2"


def test_a_rank_that_raises_tells_the_others_why() -> None:
    fault = Fault("raise", "forward", TIMEOUT_S)
    said = check_survivors(outcomes(RING, fault), fault, TIMEOUT_S)
    for text in said:
        assert text.startswith("rank 1 failed\n  during: attention forward, contiguous layout over ring\n")
        assert "\n  during: a call of Bare\n" in text
        assert "\n  rank 1: IndexError: index out of range in self\n" in text


def test_a_rank_that_raises_outside_of_calls_tells_the_others_inside_of_failing_together() -> None:
    fault = Fault("raise", "call", 60.0, together=True)
    said = check_survivors(outcomes(RING, fault), fault, 10.0)
    for text in said:
        assert "what all ranks say before a call (all-gather" in text
        assert "\n  during: step 3\n" in text
        assert "\n  rank 1: IndexError: index out of range in self\n" in text


@pytest.mark.slow
def test_a_rank_that_is_interrupted_and_lives_on_tells_the_others() -> None:
    """As by the stop button of a notebook."""
    fault = Fault("interrupt", "forward", 60.0)
    for text in check_survivors(outcomes(RING, fault), fault, 10.0):
        assert "\n  rank 1: KeyboardInterrupt\n" in text


@pytest.mark.slow
def test_a_generator_that_is_left_inside_of_failing_together_has_not_failed() -> None:
    assert [each.kind for each in outcomes(RING, Fault("leave", "call", 30.0))] == [""] * 3


def test_a_rank_that_is_too_slow_is_named_and_hears_of_it() -> None:
    fault = Fault("sleep", "call", TIMEOUT_S, sleep_s=2 * TIMEOUT_S)
    found = outcomes(RING, fault)
    said = check_survivors(found, fault, TIMEOUT_S + HURRY_S)
    for text in said:
        assert text.startswith("rank 1 is late or lost\n")
        assert "if it was only slow, init_process_group(timeout=…)" in text
        assert "needed: the ranks 0, 1, 2 alive, none later than 3 s, their timeout" in text
    assert found[1].text.startswith("one of the ranks 0, 2 gave up on this rank, 1\n")


@pytest.mark.slow
def test_a_rank_that_takes_the_store_with_it_is_named_by_those_that_wait_for_it() -> None:
    found = outcomes(RING, Fault("kill", "forward", TIMEOUT_S, rank=0, tcp=True))
    assert [each.kind for each in found] == ["dead", "RankLostError", "RankLostError"]
    assert [each.ranks for each in found[1:]] == [(0,), (1,)]  # nobody tells rank 2 what rank 1 has waited for
    assert all(each.seconds < TIMEOUT_S + HURRY_S for each in found)


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named() -> None:
    fault = Fault("sleep", "call", TIMEOUT_S, sleep_s=4 * TIMEOUT_S)
    found = outcomes(USP, fault)
    assert [each.kind for each in found] == ["RankLostError"] * 4
    assert all(found[rank].ranks == (1,) for rank in (0, 2, 3))


def test_a_rank_that_is_slower_than_the_others_is_waited_for() -> None:
    found = outcomes(RING, Fault("sleep", "forward", 30.0, sleep_s=1.0))
    assert [each.kind for each in found] == [""] * 3


def test_where_all_ranks_fail_alike_their_groups_stay() -> None:
    """In the middle of the same attention; the next step is as if nothing had been."""
    found = outcomes(RING, Fault("raise", "forward", 30.0, rank=EVERYBODY, again=True))
    assert [(each.kind, each.again) for each in found] == [("IndexError", "")] * 3, found


def test_a_rank_of_two_axes_is_named_by_those_that_never_speak_to_it() -> None:
    """On 2 x 2 ranks, rank 2 speaks to 0 and 3 alone."""
    fault = Fault("kill", "forward", TIMEOUT_S)
    check_survivors(outcomes(USP, fault), fault, TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ["forward", "backward", "sum"])
@pytest.mark.parametrize("kind", ["kill", "raise"])
@pytest.mark.parametrize("way", WAYS)
def test_models_by_every_strategy(way: str, kind: str, where: str) -> None:
    """FSDP's exchanges are torch's own, and so is what raises between sp's in backward: inside of failing_together."""
    together = way == "fsdp" or kind == "raise"
    fault = Fault(kind, where, 20.0, together=together)
    check_survivors(outcomes(WAYS[way], fault), fault, 20.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_is_killed_in_a_checkpoint_is_named() -> None:
    fault = Fault("kill", "checkpoint", 20.0, together=True)
    check_survivors(outcomes(FSDP, fault), fault, 20.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_raises_in_a_checkpoint_is_named_by_torch_and_all_can_go_on() -> None:
    """torch.distributed.checkpoint gathers what its ranks raise, and raises all of it on each: a BaseException."""
    found = outcomes(FSDP, Fault("raise", "checkpoint", 20.0, together=True, again=True))
    for each in found:
        assert (each.kind, each.again) == ("CheckpointException", ""), each
        assert "(RANK 1)" in each.text
        assert "IndexError: index out of range in self" in each.text
        assert each.seconds < 10.0, each
