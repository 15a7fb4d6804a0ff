"""A ring of rings against attention on one device, in fp64; what travels along which axis, and when."""

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from sp.mask import CAUSAL, FULL, Band
from sp.plan import count_steps, make_plan
from sp.runtime import circle
from sp.runtime.comm import Exchange
from sp.runtime.world import World
from tests.runtime import scored
from tests.runtime.attention_reference import make_inputs, relative_errors, single, spread_and_gather

NAME = "double_ring"
SHAPES = [(2, 2), (2, 3), (3, 2), (4, 2), (1, 3), (3, 1)]
MASKS = [CAUSAL, FULL, Band(5, 0), Band(3, 7), Band(0, 0), Band(None, 4), Band(9, None), Band(2, 0)]


@pytest.mark.parametrize("layout", ["striped", "zigzag", "contiguous"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float64_is_exact(shape: tuple[int, int], layout: str) -> None:
    """Lengths that divide the world and that don't, as few tokens as ranks, fewer; windows that end within a turn."""
    world = shape[0] * shape[1]
    for number, mask in enumerate(MASKS):
        length = (4 * world + 1, 3 * world - 1, world, 2 * world, 2)[number % 5]
        inputs = make_inputs(length)
        errors = relative_errors(spread_and_gather(inputs, mask, layout, "dense", shape, NAME), single(inputs, mask))
        assert max(errors) < 1e-13, (mask, length, errors)


@pytest.mark.parametrize("layout", ["striped", "contiguous"])
@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2), (2, 4), (4, 2)], ids=str)
def test_it_ends_when_no_rank_has_work_left(shape: tuple[int, int], layout: str) -> None:
    """And not before: every pair that the mask lets through is in a step that is taken."""
    world = shape[0] * shape[1]
    for mask in MASKS:
        for length in (world, 3 * world + 1):
            plans = [make_plan(layout, mask, length, world, rank, inner=shape[1]) for rank in range(world)]
            last = max((n for plan in plans for n, step in enumerate(plan.steps) if step.tiles), default=0)
            assert {count_steps(plan) for plan in plans} == {last + 1}
            pairs = sum(mask.visible(i, j) for i in range(length) for j in range(length))
            assert sum(tile.area for plan in plans for step in plan.steps for tile in step.tiles) == pairs


def test_every_source_comes_once_and_a_ring_is_passed_on_in_whole() -> None:
    for outer, inner in SHAPES:
        world = outer * inner
        for rank in range(world):
            sources = [step.source for step in make_plan("striped", FULL, world, world, rank, inner=inner).steps]
            assert sorted(sources) == list(range(world))
            rings = [source // inner for source in sources]
            assert rings == [(rank // inner - turn) % outer for turn in range(outer) for _ in range(inner)]
            assert all(sources[turn * inner] % inner == rank % inner for turn in range(outer))


@pytest.mark.parametrize("name", scored.CASES)
def test_scores(name: str) -> None:
    number = list(scored.CASES).index(name)
    shape, length = SHAPES[number % 4], (13, 16, 23)[number % 3]
    inputs = make_inputs(length)
    found = scored.spread_and_gather(scored.CASES[name], inputs, "striped", "flash", shape, NAME)
    errors = relative_errors(found, scored.written_out(scored.CASES[name], inputs))
    assert max(errors) < 1e-11, errors


def test_documents_end_the_rings_early() -> None:
    """Blocks that documents hide end a turn, and with it what travels."""
    inputs = make_inputs(1600, groups=1, size=4)
    found = scored.spread_and_gather(scored.CASES["documents"], inputs, "contiguous", "flash", (3, 2), NAME)
    errors = relative_errors(found, scored.written_out(scored.CASES["documents"], inputs))
    assert max(errors) < 1e-11, errors


@dataclass(frozen=True)
class Recorded:
    """An exchange that writes down when it is awaited."""

    exchange: Exchange
    what: str
    events: list[str]

    def wait(self) -> Tensor:
        self.events.append(f"{self.what} landed")
        return self.exchange.wait()


def record(monkeypatch: pytest.MonkeyPatch, events: dict[str, list[str]], inner: int) -> None:
    """Of blocks of 2 tokens on each rank."""
    post = circle.post_exchange

    def recorded(world: World, sent: Tensor, to: int, room: Tensor, source: int, tag: int, *step: object) -> Any:
        assert sent.numel() == room.numel() == 2 * 2 * 2 * (8 + 8)
        what = ("keys", "sums")[tag] + (" inside" if world.size == inner else " outside")
        mine = events[threading.current_thread().name]
        mine.append(what)
        return Recorded(post(world, sent, to, room, source, tag, *step), what, mine)

    monkeypatch.setattr(circle, "post_exchange", recorded)


def test_slow_links_have_a_whole_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a mesh of 2 x 3, what each rank posts and awaits: blocks of 2 tokens, 2 key heads of size 8, twice."""
    events: dict[str, list[str]] = {f"rank {rank}": [] for rank in range(6)}
    record(monkeypatch, events, inner=3)
    spread_and_gather(make_inputs(12), FULL, "striped", "dense", (2, 3), NAME)
    hops = ["keys inside", "keys inside landed"] * 2
    forward = ["keys outside", *hops, "keys outside landed", *hops]
    for found in events.values():
        assert found[: len(forward)] == forward
        backward = found[len(forward) :]
        assert [event for event in backward if event.startswith("keys")] == forward
        assert backward.count("sums inside") == 2 * 2, "what a turn begins with is added to where it is"
        outside = [event for event in backward if event.startswith("sums outside")]
        assert outside == ["sums outside", "sums outside landed"], "home; the own sums never left"
        assert backward[-1] == "sums outside landed", "after the second half of the own keys"


def test_sums_have_a_whole_turn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a mesh of 3 x 2 those of the second turn are handed on while the third is computed, and then go home."""
    events: dict[str, list[str]] = {f"rank {rank}": [] for rank in range(6)}
    record(monkeypatch, events, inner=2)
    spread_and_gather(make_inputs(12), FULL, "striped", "dense", (3, 2), NAME)
    for found in events.values():
        outside = [event for event in found if event.startswith("sums outside")]
        assert outside == ["sums outside", "sums outside landed"] * 2
        begun, ended = (found.index(event) for event in outside[:2])
        assert found[begun:ended].count("sums inside") == 1, "while the third turn's go round"
