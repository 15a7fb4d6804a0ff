"""What a failed exchange is called; whole processes that fail: tests/faults."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from sp.errors import RankLostError
from sp.runtime.comm import all_gather, post_exchange
from sp.runtime.faults import Inside, Watch, is_a_fault
from sp.runtime.notes import board_of, close_connections
from sp.runtime.world import World, find_world
from sp.testing import run_ranks


def test_in_a_world_of_threads_the_rank_that_was_waited_for_is_named() -> None:
    def rank(group: dist.ProcessGroup) -> tuple[str, str]:
        world, x, said = find_world(group.group_name), torch.ones(2), list[str]()
        close_connections(group)
        with pytest.raises(RankLostError) as one, Inside("the {}", "middle"):
            post_exchange(world, x, 1 - world.rank, x.clone(), 1 - world.rank, 0, "step {} of {}", 1, 2).wait()
        said.append(str(one.value))
        with pytest.raises(RankLostError) as all_of_them:
            all_gather(world, x, [(2,)] * 2, "words")
        assert one.value.ranks == all_of_them.value.ranks == (1 - world.rank,)
        return said[0], str(all_of_them.value)

    for number, (one, all_of_them) in enumerate(run_ranks(2, rank)):
        first, middle, waited, needed, remedy = one.split("\n")
        assert first in (f"rank {1 - number} is lost", f"rank {1 - number} is late or lost")
        assert middle == "  during: the middle"
        assert waited.startswith(f"  this rank, {number}: waited 0.0 s for rank {1 - number} in: step 1 of 2 (8 bytes)")
        assert needed == "  needed: 2 ranks alive, none later than the timeout of their group"
        assert f"read the log of rank {1 - number} first; restart all ranks" in remedy
        assert "words (all-gather, 8 bytes of each rank); backend: " in all_of_them


def test_what_the_call_is_to_blame_for_stays_what_it_is() -> None:
    assert not is_a_fault(RuntimeError("Invalid scalar type"))
    assert not is_a_fault(ValueError("Timed out"))
    assert is_a_fault(RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:1"))
    with pytest.raises(RuntimeError, match=r"^Invalid scalar type$"), Watch(World(0, 1), "an exchange"):
        raise RuntimeError("Invalid scalar type")


def test_a_world_of_one_and_worlds_of_threads_have_no_board() -> None:
    assert board_of(None) is None
    assert run_ranks(2, lambda group: board_of(group) is None) == [True, True]
