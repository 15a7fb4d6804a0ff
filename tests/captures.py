"""One capture for all ranks that are threads: most of what a test of a whole model takes is torch.export, rank by rank.

    pytestmark = pytest.mark.usefixtures("one_capture")

The first rank's capture serves the others, over their own parameters.  What each rank makes of it (passes, binding,
agreement, running) is its own, and so is the capture where ranks are processes: that they capture alike is tried there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from sp.executable import _captured
from sp.options import Options
from sp.passes.call import Outputs
from sp.program import Program
from sp.request import Lengths, Request
from sp.slots import slots_of
from sp.strategy import STRATEGIES

Captured = tuple[Program, Outputs]


@dataclass(frozen=True)
class OneCapture:
    """In place of `sp.executable._captured`, which is called by one thread at a time."""

    capture: Callable[[nn.Module, Request, Lengths, Options], Captured] = _captured
    known: dict[Sequence[object], Captured] = field(default_factory=dict[Sequence[object], Captured])

    def __call__(self, model: nn.Module, request: Request, lengths: Lengths, options: Options) -> Captured:
        shapes = str([tensor.shape for tensor in request.tensors])
        key = request.key, shapes, lengths, request.past, str(options.sequence_dim), options.local_inputs
        if key not in self.known:
            self.known[key] = self.capture(model, request, lengths, options)
        program, outputs = self.known[key]
        own = program.fork()
        for slot in slots_of(own.graph_module, model):
            slot.refresh(model)
        # Where one is to be chosen, any of one axis stands for it, as in `_captured`, and not what others asked for.
        return replace(own, strategy=options.strategy or next(iter(STRATEGIES.values()))), outputs
