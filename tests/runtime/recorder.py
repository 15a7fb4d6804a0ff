"""What each rank does, in order and without time: posts, waits, calls of the kernel, additions to travelling sums."""

import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from sp.mask import Band
from sp.plan import make_plan
from sp.runtime import allgather, circle, stream
from sp.runtime.kernels import KERNELS, Kernel
from sp.runtime.stream import Saved
from sp.runtime.transport import find_transport
from sp.runtime.world import World, find_world
from sp.testing import run_ranks
from tests.runtime.attention_reference import SCALE, make_inputs

Events = list[str]


@dataclass
class _Flight:
    """Stands for what is under way, and records when it is awaited."""

    flight: Any
    what: str
    events: Events

    def wait(self) -> Any:
        self.events.append(f"wait {self.what}")
        return self.flight.wait()


class Recorder:
    """Records in the functions of `comm` that the transports call, where they add sums, and in a kernel of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mine, post = threading.local(), circle.post_exchange

        def posted(world: World, send: Tensor, to: int, receive: Tensor, source: int, tag: int, *step: object) -> Any:
            what = ("visitors", "results")[tag]
            self.events.append(f"post {what} to +{(to - world.rank) % world.size}")
            return _Flight(post(world, send, to, receive, source, tag, *step), what, self.events)

        monkeypatch.setattr(circle, "post_exchange", posted)
        self._record_start(monkeypatch, "start_gather", "gather")
        self._record_start(monkeypatch, "start_all_to_all", "results")
        self._record_add(monkeypatch)

    @property
    def events(self) -> Events:
        return self._mine.__dict__.setdefault("events", [])

    def _record_start(self, monkeypatch: pytest.MonkeyPatch, name: str, what: str) -> None:
        start = getattr(allgather, name)

        def started(*arguments: Any) -> Any:
            self.events.append(f"post {what}")
            return _Flight(start(*arguments), what, self.events)

        monkeypatch.setattr(allgather, name, started)

    def _record_add(self, monkeypatch: pytest.MonkeyPatch) -> None:
        add = stream.add_parts

        def added(*arguments: Any) -> None:
            self.events.append("add")
            add(*arguments)

        monkeypatch.setattr(stream, "add_parts", added)

    def _kernel(self, own_q: Tensor, own_k: Tensor) -> Kernel:
        """Of one call for each tile."""
        kernel = KERNELS["dense"]

        def call(q: Tensor, k: Tensor) -> None:
            self.events.append("compute own" if _shared(q, own_q) and _shared(k, own_k) else "compute")

        def forward(q: Tensor, k: Tensor, *rest: Any) -> Any:
            call(q, k)
            return kernel.forward(q, k, *rest)

        def backward(grad: Tensor, q: Tensor, k: Tensor, *rest: Any) -> Any:
            call(q, k)
            return kernel.backward(grad, q, k, *rest)

        return replace(kernel, cut=lambda tile, device: (tile,), forward=forward, backward=backward)

    def run(
        self, transport: str, world_size: int, layout: str, mask: Band, length: int, keys: int | None = None
    ) -> list[tuple[Events, Events]]:
        """The events of forward and of backward on each rank."""

        def rank(group: dist.ProcessGroup) -> tuple[Events, Events]:
            world = find_world(group.group_name)
            plan = make_plan(layout, mask, length, world.size, world.rank, keys)
            (q, _, _, grad), (_, k, v, _) = (make_inputs(own) for own in plan.local)
            kernel, run = self._kernel(q, k), find_transport(transport)
            out, (lse,) = run.forward(q, k, v, plan, kernel, SCALE, world, None)
            count = len(self.events)
            run.backward(grad, Saved(q, k, v, out, lse), plan, kernel, SCALE, world, None)
            return self.events[:count], self.events[count:]

        return run_ranks(world_size, rank)


def _shared(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
