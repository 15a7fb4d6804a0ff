"""The exchanges of a call without a model: to capture one takes a second of each rank."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from sp.layout import find_layout
from sp.mask import CAUSAL
from sp.mesh import bind_mesh
from sp.models.gpt import LMOutput
from sp.runtime import ops
from sp.runtime.agreement import Statement, exchange_statements
from sp.runtime.faults import failing_together
from sp.runtime.world import find_world
from sp.strategy import find_strategy

LENGTH = 37


class Bare(nn.Module):
    """What a call of a parallelized model exchanges: words, an attention, and the sum of a gradient."""

    def __init__(self, strategy: str, mesh: DeviceMesh) -> None:
        super().__init__()
        bound, self.name = bind_mesh(find_strategy(strategy), mesh)
        assert bound is not None
        self.strategy, self.scale = bound, nn.Parameter(torch.ones(()))

    def forward(self, ids: Tensor, labels: Tensor) -> LMOutput:
        world, how = find_world(self.name), self.strategy
        exchange_statements(world, Statement(call="the same"), ids.device)
        with failing_together(world, "a call of Bare"):
            ticket, mark = ops.promise([self.scale], self.name)
            (scale,) = ops.replicate_all([self.scale], [ticket, mark], self.name)
            mine = find_layout(how.layout).local_length(LENGTH, world.rank, world.size)
            x = torch.ones(1, 6, mine, 8) * scale
            call = (str(CAUSAL), "", 1.0, LENGTH, LENGTH, how.layout, how.transport, "flash", self.name)
            return LMOutput(ids, ops.attention(x, x, x, [], *call)[0].sum())
