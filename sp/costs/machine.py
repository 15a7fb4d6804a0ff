"""What the cost model knows of a machine, and some machines.

>>> list(sp.costs.MACHINES)
['a100', 'h100', 'h800', 'h200', 'cpu']
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sp.errors import StrategyError


@dataclass(frozen=True)
class Machine:
    """Speeds that programs are taken to reach, not those of data sheets: FLOP/s, bytes/s and seconds, of one rank.

    matmul_flops: of large matrix products.  attention_flops: of the attention kernel where nothing is masked.
    tile: rows × columns of that kernel within which nothing is skipped.
    banded: its speed where a band crosses, relative to `attention_flops`, beside what `tile` explains.
    memory_bandwidth: of the rank's own memory.  merge_passes: how often merging two partial outputs moves the bytes
        that one fused pass moves (1; four or so where every op is a pass).
    link_*: between ranks of one node, in each direction.  node_*: between nodes, for each rank.

        >>> import dataclasses
        >>> cluster = dataclasses.replace(sp.costs.MACHINES["h100"], ranks_per_node=4, node_bandwidth=20e9)
        >>> assert isinstance(cluster, sp.costs.Machine)
        >>> cluster.hop(1e9, world=4) < cluster.hop(1e9, world=8), cluster.exchange(1e9, world=4) > 0
        (True, True)
        >>> cluster.with_latency_of(0.5).link_latency
        2.5e-06
    """

    name: str
    matmul_flops: float
    attention_flops: float
    tile: tuple[int, int]
    banded: float
    memory: float
    memory_bandwidth: float
    ranks_per_node: int
    link_bandwidth: float
    link_latency: float
    node_bandwidth: float
    node_latency: float
    merge_passes: float = 1.0

    def with_latency_of(self, part: float) -> Machine:
        """The same machine, on which a message takes that part of the latency."""
        if part == 1:
            return self
        return replace(self, link_latency=part * self.link_latency, node_latency=part * self.node_latency)

    def hop(self, sent: float, world: int) -> float:
        """Seconds until every rank has the `sent` bytes of its neighbour.  The slowest link decides."""
        if world <= self.ranks_per_node:
            return self.link_latency + sent / self.link_bandwidth
        return self.node_latency + sent / min(self.node_bandwidth, self.link_bandwidth)

    def exchange(self, sent: float, world: int) -> float:
        """Seconds of an all-to-all in which every rank sends `sent` bytes, the same to each of the others.

        Inside and between nodes at the same time; on each way one message after another."""
        near = min(world, self.ranks_per_node) - 1
        far = world - 1 - near
        to_one = sent / max(1, world - 1)
        inside = near * (self.link_latency + to_one / self.link_bandwidth)
        return max(inside, far * (self.node_latency + to_one / self.node_bandwidth))


# What large products and FlashAttention (2 on A100 and H800, 3 on H100) reach, four fifths of what data sheets say of
# memory and links.  banded: 0.9 on every GPU, chosen by hand with the figures in view that docs/costs.md compares.
# CPU: one thread of the machine of README's table; of memory, which ranks share, no limit is known.
MACHINES = {
    machine.name: machine
    for machine in (
        Machine("a100", 240e12, 220e12, (128, 128), 0.9, 80e9, 1.6e12, 8, 240e9, 5e-6, 22e9, 15e-6),
        Machine("h100", 650e12, 610e12, (128, 128), 0.9, 80e9, 2.7e12, 8, 360e9, 5e-6, 45e9, 15e-6),
        Machine("h800", 650e12, 400e12, (128, 128), 0.9, 80e9, 2.7e12, 8, 160e9, 5e-6, 45e9, 15e-6),
        Machine("h200", 650e12, 610e12, (128, 128), 0.9, 141e9, 3.8e12, 8, 360e9, 5e-6, 45e9, 15e-6),
        Machine("cpu", 100e9, 88e9, (512, 512), 1.0, math.inf, 8e9, 2, 1.5e9, 1e-4, 1.2e9, 2e-4),
    )
}


_ASSUMED = "h100"


def find_machine(machine: Machine | str) -> Machine:
    """A machine itself, or the one of that name; StrategyError lists the known ones.

    >>> sp.costs.find_machine("h100").ranks_per_node
    8
    """
    if isinstance(machine, Machine):
        return machine
    if machine not in MACHINES:
        known = ", ".join(MACHINES)
        raise StrategyError(
            f"there is no machine {machine!r}",
            needed=f"one of: {known}",
            remedy="describe yours as an sp.costs.Machine",
        )
    return MACHINES[machine]


def machine_of(device: str, chip: str = "") -> Machine:
    """The machine of a device type, as `cpu` and `cuda`, and a chip's name; where neither says, one that says so.

    >>> sp.costs.machine_of("cuda", "NVIDIA H100 80GB HBM3").name, sp.costs.machine_of("xpu").name
    ('h100', 'h100 (assumed: of xpu nothing is known)')
    """
    if device == "cpu":
        return MACHINES["cpu"]
    for name, machine in MACHINES.items():
        if name in chip.lower():
            return machine
    return replace(MACHINES[_ASSUMED], name=f"{_ASSUMED} (assumed: of {chip or device} nothing is known)")
