"""What tallies see of messages, and of waiting for sums, which is known by the memory of the sum alone."""

import torch

from sp.runtime.comm import finish_sum, start_gather, start_sum
from sp.runtime.tally import GATHER, SUM, close_tally, note_message, open_tally, tallies_of, timers_of_sum
from sp.runtime.world import World, find_world
from sp.testing import run_ranks


def test_a_sum_is_waited_for_where_only_its_memory_is_known():
    def fn(group):
        world = find_world(group.group_name)
        timed, counted = open_tally([group.group_name], True), open_tally([group.group_name], False)
        x = torch.ones(6)
        start_sum(world, x)
        assert timed.sums == {x.data_ptr()}
        assert not counted.sums
        finish_sum(world, x)
        close_tally(timed)
        close_tally(counted)
        assert tallies_of(group.group_name) == ()
        assert timers_of_sum(x) == ()
        return x.tolist(), timed.waited_s, counted.waited_s, [vars(each.traffic[SUM]) for each in (timed, counted)]

    for total, timed, counted, traffic in run_ranks(3, fn):
        assert total == [3.0] * 6
        assert timed > 0
        assert counted == 0
        assert traffic == [{"messages": 1, "sent": 32, "received": 32}] * 2


def test_waits_end_with_the_message_and_not_with_the_block():
    """A message that is posted while somebody counts is timed, wherever it is waited for."""

    def fn(group):
        world = find_world(group.group_name)
        tally = open_tally([group.group_name], True)
        gathering = start_gather(world, torch.zeros(2), [(2,)] * 2)
        close_tally(tally)
        before = tally.waited_s
        gathering.wait()
        return before, tally.waited_s, vars(tally.traffic[GATHER])

    for before, after, traffic in run_ranks(2, fn):
        assert before == 0 < after
        assert traffic == {"messages": 1, "sent": 8, "received": 8}


def test_nobody_is_told_of_nothing():
    tally = open_tally(["", ""], True)
    assert tally.names == ("",)
    assert note_message(World(0, 1), SUM, 8, 8) == ()
    close_tally(tally)
    assert tally.traffic[SUM].messages == 0
