"""Memory of one step, counted in tensors rather than in what the C library's allocator keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def most_alive_bytes(step: Callable[[], object]) -> int:
    """The most bytes of CPU tensors made by `step()` that were alive at once, by torch's profiler.

    What existed before does not count; what `step` leaves behind (gradients) does."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    results: Any = profiler.profiler.kineto_results if profiler.profiler else None  # torch's stubs lack its events
    alive = most = 0
    for event in results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    return most
