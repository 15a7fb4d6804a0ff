"""What tracing leaves behind in torch's own tables, taken away; nothing else would.

* Caches of `ShapeEnv` hold the symbols of the latest hundred traces, and so their fake tensors: megabytes.
* `torch.fx` keeps the text of every graph for which it wrote code, for tracebacks: 100 kB for each capture.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph_module import _loader  # where the texts are


@dataclass
class Texts:
    """Of the graphs that a trace makes.  owner: who runs them, and so may have to show them."""

    owner: fx.GraphModule | None = None


@contextmanager
def swept() -> Generator[Texts]:
    """Trace inside.  The texts go with their owner, or at once without one."""
    texts, before = Texts(), set(_loader.eval_cache)
    try:
        yield texts
    finally:
        for cached in vars(ShapeEnv).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
        new = set(_loader.eval_cache) - before
        if texts.owner is None:
            _forget(new)
        else:
            weakref.finalize(texts.owner, _forget, new).atexit = False


def _forget(names: Iterable[str]) -> None:
    for name in names:
        _loader.eval_cache.pop(name, None)
        linecache.cache.pop(name, None)
