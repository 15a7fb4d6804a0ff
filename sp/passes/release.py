"""Release: what torch.export makes can be freed.

    ShapeEnv.tracked_fakes → fake tensor → its sizes (C++) → SymNode → ShapeEnv

torch notes the fake inputs of a trace until it has checked its guards.  The way through C++ hides the circle from the
garbage collector, so that each trace, a failed one too, would stay for good: a megabyte for a layer, by its caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from traceback import walk_tb

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram


def released(trace: Callable[[], ExportedProgram]) -> ExportedProgram:
    """What `trace` gives or raises, its circle cut."""
    try:
        program = trace()
    except Exception as error:
        for mode in _modes_of(error):
            _cut(mode)
        raise
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            _cut(value.fake_mode)
    return program


def _modes_of(error: Exception) -> Iterator[FakeTensorMode]:
    """Those that the functions it came through have at hand."""
    for frame, _ in walk_tb(error.__traceback__):
        yield from (value for value in frame.f_locals.values() if isinstance(value, FakeTensorMode))


def _cut(mode: FakeTensorMode) -> None:
    if mode.shape_env is not None and mode.shape_env.tracked_fakes is not None:
        mode.shape_env.tracked_fakes.clear()
