"""Spans: what a rank does, by name, in the trace of torch.profiler.

    sp: attention to keys of rank 1
    sp: wait for 1,048,576 bytes

They cost nothing while nobody records: not even their names are made then.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.autograd.profiler import record_function

_NOTHING = nullcontext()


def span(name: str, *values: object) -> AbstractContextManager[object]:
    """A range called `sp: ` and the name, with the values in its places, if a profiler is on."""
    return record_function(f"sp: {name.format(*values)}") if torch.autograd._profiler_enabled() else _NOTHING
