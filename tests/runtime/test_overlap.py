"""What is under way while ranks compute: by the order of events, never by time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from sp.layout import LAYOUTS
from sp.mask import CAUSAL, FULL, Band
from sp.plan import make_plan
from sp.runtime.kernels import KERNELS
from sp.runtime.stream import Saved
from sp.runtime.transport import find_transport
from sp.runtime.world import find_world
from sp.testing import run_ranks
from tests.runtime.attention_reference import SCALE, make_inputs
from tests.runtime.recorder import Events, Recorder

COMPUTE, OWN, ADD = "compute", "compute own", "add"
VISITORS, ARRIVED = "post visitors to +1", "wait visitors"
RESULTS, RETURNED = "post results to +1", "wait results"


def test_ring_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next keys are posted before a step is computed and awaited after it."""
    for forward, _ in Recorder(monkeypatch).run("ring", 3, "striped", CAUSAL, 12):
        assert forward == [VISITORS, OWN, ARRIVED, VISITORS, COMPUTE, ARRIVED, COMPUTE]


def test_ring_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of a step are posted before the next is computed, their last hop before half of the own keys are."""
    for _, backward in Recorder(monkeypatch).run("ring", 4, "striped", CAUSAL, 16):
        own = [VISITORS, OWN, ADD, ARRIVED]
        step1 = [VISITORS, COMPUTE, ADD, RESULTS, ARRIVED]  # here the sums begin
        step2 = [VISITORS, COMPUTE, RETURNED, ADD, RESULTS, ARRIVED]
        step3 = [COMPUTE, RETURNED, ADD, "post results to +1"]  # from rank r + 3 of 4 to r: one further on too
        assert backward == [*own, *step1, *step2, *step3, OWN, ADD, RETURNED]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_each_hop_of_a_ring_is_hidden_on_every_rank(world: int, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is awaited right after it was posted; where a rank has no work in a step, nothing can hide a hop."""
    for phases in Recorder(monkeypatch).run("ring", world, layout, FULL, 4 * world + 1):
        for events in phases:
            assert not [*exposed(events)], events


def exposed(events: Events) -> list[str]:
    """What is awaited with no computation between its post and its wait."""
    found: list[str] = []
    posted: dict[str, int] = {}
    for place, event in enumerate(events):
        verb, what, *_ = [*event.split(), ""]
        if verb == "post":
            posted[what] = place
        if verb == "wait" and not any(between.startswith(COMPUTE) for between in events[posted[what] : place]):
            found.append(f"{what} at {place}")
    return found


def test_an_exposed_hop_is_found() -> None:
    assert exposed([VISITORS, ARRIVED, COMPUTE]) == ["visitors at 1"]
    assert exposed([VISITORS, COMPUTE, RESULTS, ARRIVED, RETURNED]) == ["results at 4"]


def test_a_window_ends_the_ring_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 tokens a rank and a window of 5, nobody needs keys from two ranks behind; sums go home at once."""
    for number, (forward, backward) in enumerate(Recorder(monkeypatch).run("ring", 4, "contiguous", Band(4, 0), 16)):
        work = [COMPUTE] if number else []
        assert forward == [VISITORS, OWN, ARRIVED, *work]
        assert backward == [VISITORS, OWN, ADD, ARRIVED, *work, ADD, "post results to +3", OWN, ADD, RETURNED]


def test_all_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys arrive during the rank's own tiles; in backward the sums go home during the second half of these."""
    for forward, backward in Recorder(monkeypatch).run("allgather", 3, "striped", CAUSAL, 12):
        assert forward == ["post gather", OWN, "wait gather", COMPUTE, COMPUTE]
        others = [COMPUTE, ADD, COMPUTE, ADD, "post results"]
        assert backward == ["post gather", OWN, ADD, "wait gather", *others, OWN, ADD, RETURNED]


def test_what_nobody_needs_is_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that see themselves alone; and steps without work are not computed."""
    recorder = Recorder(monkeypatch)
    assert recorder.run("allgather", 3, "contiguous", Band(0, 0), 12) == [([OWN], [OWN, ADD])] * 3
    found = recorder.run("allgather", 3, "contiguous", CAUSAL, 12)
    assert [forward.count(COMPUTE) + forward.count(OWN) for forward, _ in found] == [1, 2, 3]


@pytest.mark.parametrize("transport", ["ring", "allgather"])
def test_a_world_of_one_never_communicates(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Recorder(monkeypatch).run(transport, 1, "zigzag", CAUSAL, 12) == [([OWN], [OWN, ADD])]


class Buffers(TorchDispatchMode):
    """Counts the new tensors that an attention makes for what travels, by their number of elements."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self._numel, self.count = numel, 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.new_empty.default:
            self.count += result.numel() == self._numel
        return result


@pytest.mark.parametrize("world", [2, 3, 6])
def test_a_ring_has_two_buffers_for_what_travels(world: int) -> None:
    """And two more for the sums, whatever the world; of which there is one hop less than of steps."""
    length = 4 * world

    def rank(group: dist.ProcessGroup) -> tuple[int, int]:
        here = find_world(group.group_name)
        plan, run = make_plan("striped", CAUSAL, length, world, here.rank), find_transport("ring")
        q, k, v, grad = make_inputs(4)
        with Buffers(k.numel() + v.numel()) as forward:
            out, (lse,) = run.forward(q, k, v, plan, KERNELS["flash"], SCALE, here, None)
        with Buffers(k.numel() + v.numel()) as backward:
            run.backward(grad, Saved(q, k, v, out, lse), plan, KERNELS["flash"], SCALE, here, None)
        return forward.count, backward.count

    assert set(run_ranks(world, rank)) == {(2, 4)}
