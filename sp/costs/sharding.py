"""What FSDP saves and costs: parameters, gradients and optimizer divided over ranks, gathered block by block.

forward     gather block 1 | 2 while 1 runs | 3 while 2 runs | …
backward    the same from the end, and each block's gradients scattered while the next one runs
"""

from __future__ import annotations

from dataclasses import dataclass

from sp.costs.machine import Machine
from sp.costs.phase import Phase
from sp.costs.workload import Workload
from sp.errors import InputError


@dataclass(frozen=True)
class Sharding:
    """FSDP, for `sp.estimate(sharding=…)`.

        >>> work, over_64 = llama.workload(65_536), sp.costs.Sharding(ranks=64, optimizer_bytes=12)
        >>> over_64.memory(work) < sp.costs.Sharding(1).memory(work)
        True
        >>> over_64.transfers(work, sp.costs.MACHINES["h100"], dense=0.0).exposed > 0
        True

    ranks: over how many everything is divided; all of the mesh, or of a larger one.
    optimizer_bytes: that it keeps for each parameter: 12 for Adam beside 16-bit parameters (a copy in float32 and two
    moments), 8 without the copy."""

    ranks: int
    optimizer_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.optimizer_bytes < 0:
            found = f"parameters divided over {self.ranks} ranks, {self.optimizer_bytes} bytes of the optimizer each"
            raise InputError(found, needed="at least one rank, and no fewer than 0 bytes")

    def memory(self, work: Workload) -> float:
        """Bytes of one rank: its part, and of whole blocks the parameters of two (the one that runs and the next) and
        the gradients of one."""
        part = (work.state_bytes + self.optimizer_bytes * work.parameters) / self.ranks
        return part + (3 * work.block_bytes if self.ranks > 1 else 0.0)

    def transfers(self, work: Workload, machine: Machine, dense: float) -> Phase:
        """Gathering in forward, gathering and scattering in backward, in the dtype of the parameters.

        dense: seconds of everything but attention, which is all that hides them: behind attention travel its keys."""
        hops, bytes_ = self.ranks - 1, work.state_bytes / 2
        if not hops or not work.block_bytes:
            return Phase(0.0, 0.0, 0.0, 0.0)
        blocks = bytes_ / work.block_bytes
        once = blocks * hops * machine.hop(work.block_bytes / self.ranks, self.ranks)
        ways = (1, 2) if work.trains else (1,)
        hidden = (dense / work.repeats, dense - dense / work.repeats) if work.trains else (dense,)
        late = sum(max(0.0, way * once - behind) for way, behind in zip(ways, hidden, strict=True))
        return Phase(0.0, 0.0, late, sum(ways) * hops * bytes_ / self.ranks)
