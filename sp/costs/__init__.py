"""The cost model: what a training step takes under each strategy, before anything runs.  Numbers only, no tensors."""

from sp.costs.estimate import Estimate, Estimates, estimate, estimate_workload
from sp.costs.machine import MACHINES, Machine, find_machine, machine_of
from sp.costs.phase import Phase
from sp.costs.shape import ModelShape
from sp.costs.transports import TRANSPORTS
from sp.costs.workload import AttentionShape, Attending, Workload

__all__ = [
    "MACHINES",
    "TRANSPORTS",
    "AttentionShape",
    "Attending",
    "Estimate",
    "Estimates",
    "Machine",
    "ModelShape",
    "Phase",
    "Workload",
    "estimate",
    "estimate_workload",
    "find_machine",
    "machine_of",
]
