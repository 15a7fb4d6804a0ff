"""Order: every rank communicates in the order of the graph, in compiled code too.

Two sums of equal shape that swap places on one rank are added to each other, without an error.  Inductor does that: it
schedules by sizes, which differ by a token between ranks, and keeps only the collectives in order that it knows.  (An
effect token would be the way to ask for it, but torch up to 2.13 drops it: pytorch/pytorch#189209.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import torch

COMMUNICATING = (
    *("unshard", "move", "redistribute", "reduce"),
    *("attention", "attention_backward", "start_sums", "finish_sums"),
)


@cache
def keep_order() -> None:
    """Tell Inductor, once, to keep the ops that communicate in order.

    Called by their fakes, which run before anything is lowered, because importing Inductor takes a second."""
    from torch._inductor import lowering

    for name in COMMUNICATING:
        op = getattr(torch.ops.sp, name).default
        exact = lowering.tag_to_layout_constraint(torch.Tag.needs_exact_strides)
        lowering.make_fallback(op, layout_constraint=exact, warn=False)
        lowering.lowerings[op] = _after_the_previous(lowering.lowerings[op])


def _after_the_previous(lower: Callable[..., Any]) -> Callable[..., Any]:
    """The lowering `lower`, whose operations wait for those of the communication before."""
    from torch._inductor.virtualized import V

    @wraps(lower)
    def ordered(*args: Any, **kwargs: Any) -> Any:
        begin = len(V.graph.operations)
        result = lower(*args, **kwargs)
        previous = _latest(V.graph.operations[:begin])
        new = _latest(V.graph.operations[begin:])
        assert new is not None, "a communicating op is lowered to a call of itself"
        if previous is not None:
            V.graph.additional_buffer_deps[new.get_operation_name()].add(previous.get_name())
        return result

    return ordered


def _latest(operations: Sequence[Any]) -> Any:
    """The last of Inductor's operations that communicates, or None."""
    ops = {getattr(torch.ops.sp, name).default for name in COMMUNICATING}
    return next((one for one in reversed(operations) if getattr(one, "op_overload", None) in ops), None)
