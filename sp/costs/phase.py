"""The seconds and bytes of one direction, and what they are computed from."""

from __future__ import annotations

from dataclasses import dataclass

from sp.costs.machine import Machine
from sp.costs.work import Work
from sp.costs.workload import AttentionShape
from sp.traffic import KEYS, Widths, hop_bytes, travellers

BACKWARD = 2.5  # products of matrices in backward for one in forward: five and two


@dataclass(frozen=True)
class Phase:
    """Attention in forward or in backward, along the critical path, of all layers and one sequence.

        >>> phase = sp.costs.Phase(compute=2.0, merge=0.5, exposed=0.25, sent=1e9)
        >>> phase.seconds
        2.75

    compute: seconds of the kernel.  merge: of adding up what steps return.  exposed: of transfers that nothing hides.
    sent: bytes that one rank sends."""

    compute: float
    merge: float
    exposed: float
    sent: float

    @property
    def seconds(self) -> float:
        """Of all three, one after another."""
        return self.compute + self.merge + self.exposed

    def __add__(self, other: Phase) -> Phase:
        return Phase(
            self.compute + other.compute,
            self.merge + other.merge,
            self.exposed + other.exposed,
            self.sent + other.sent,
        )

    def __mul__(self, times: int) -> Phase:
        return Phase(self.compute * times, self.merge * times, self.exposed * times, self.sent * times)


@dataclass(frozen=True)
class Job:
    """One layer's attention on one rank, of one sequence.  local, keys: how many queries and keys it has.
    inner: how many ranks are neighbours along the inner of two axes; all of them where there is one axis."""

    shape: AttentionShape
    machine: Machine
    local: int
    world: int
    keys: int
    inner: int

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one rank."""
        return self.keys * self.shape.kv_width * self.shape.item_bytes

    @property
    def gradient_bytes(self) -> int:
        """Their gradients, as sums."""
        return self.keys * self.shape.kv_width * self.shape.sum_bytes

    def hop(self, backward: bool) -> tuple[int, int]:
        """What goes from rank to rank in a ring, there and back, one step behind: keys and values, or queries where
        that is less."""
        shape = self.shape
        widths = Widths(shape.heads, shape.kv_heads, shape.head_width, shape.value_width, shape.item_bytes)
        what = travellers(self.local, self.keys, widths, backward)
        there, back = hop_bytes(what, widths, backward)
        tokens = self.keys if what == KEYS else self.local
        return tokens * there, tokens * back

    def seconds(self, work: Work, backward: bool) -> float:
        """Of a step."""
        return self.compute(work, backward) + self.merge(work, backward)

    def compute(self, work: Work, backward: bool) -> float:
        return work.cost * self.shape.pair_flops * (BACKWARD if backward else 1) / self.machine.attention_flops

    def merge(self, work: Work, backward: bool) -> float:
        """Reading a part and the sum, writing the sum: outputs in forward, gradients of q, k and v in backward."""
        if self.world == 1:
            return 0.0
        width = self.shape.head_width if backward else self.shape.value_width
        numbers = work.queries * self.shape.heads * width
        numbers += work.keys * self.shape.kv_width if backward else 0
        passes = 1 if backward else self.machine.merge_passes
        moved = numbers * (self.shape.item_bytes + 2 * self.shape.sum_bytes)
        return passes * moved / self.machine.memory_bandwidth
