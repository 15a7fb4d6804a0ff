"""One thread at a time, in the process that made it."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.errors import SpError
from sp.gate import Gate
from sp.runtime.world import World, find_world
from sp.testing.ranks import run_ranks

X = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))


def entered(gate: Gate, world: World, found: list[SpError | None]) -> threading.Thread:
    def run() -> None:
        with gate.entered(world) as refusal:
            found.append(refusal)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_second_waits_and_is_refused_where_there_are_others() -> None:
    def rank(group: Any) -> str:
        gate, found = Gate(), list[SpError | None]()
        for world in (find_world(group.group_name), World(0, 1)):
            with gate.entered(world) as refusal, gate.entered(world) as again:
                assert refusal is None
                assert again is None
                thread = entered(gate, world, found)
                thread.join(0.1)
                assert not found[1:]
                assert thread.is_alive()
            thread.join()
        assert found[1] is None, "a world of one takes turns"
        return str(found[0])

    for message in run_ranks(2, rank):
        assert "two threads call one parallelized model at the same time" in message
        assert "remedy: call it from one thread" in message


def test_two_threads_of_each_rank() -> None:
    """Whatever meets: right, or an SpError; and then the next call is right."""
    model = nn.Linear(4, 4).double()
    right = model(X.double())

    def rank(group: Any) -> list[Tensor | Exception]:
        parallel = sp.parallelize(copy.deepcopy(model), mesh=group, compile=False)
        parallel(X.double())
        found: list[Tensor | Exception] = []

        def run() -> None:
            try:
                with torch.no_grad():
                    found.append(parallel(X.double()))
            except SpError as error:
                found.append(error)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return [*found, parallel(X.double())]

    for found in run_ranks(2, rank):
        assert len(found) == 3
        for each in found:
            if isinstance(each, Tensor):
                torch.testing.assert_close(each, right)
        assert isinstance(found[2], Tensor)


def test_a_forked_process_is_refused_at_once() -> None:
    def rank(group: Any) -> str:
        gate = Gate()
        gate._process += 1  # as a child finds it
        with pytest.raises(SpError) as caught, gate.entered(find_world(group.group_name)):
            pass
        with gate.entered(World(0, 1)):
            return str(caught.value)

    for message in run_ranks(2, rank):
        assert "a parallelized model is called in a forked process" in message
