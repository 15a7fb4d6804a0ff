"""The cost model: what a training step takes under each strategy, before anything runs.  Numbers only, no tensors."""

from sp.costs.estimate import Estimate, Estimates, estimate, estimate_workload
from sp.costs.machine import MACHINES, Machine, find_machine, machine_of
from sp.costs.phase import Phase
from sp.costs.shape import ModelShape
from sp.costs.sharding import Sharding
from sp.costs.table import byte_words
from sp.costs.transports import TRANSPORTS
from sp.costs.workload import Attending, AttentionShape, Workload

__all__ = [
    "MACHINES",
    "TRANSPORTS",
    "Attending",
    "AttentionShape",
    "Estimate",
    "Estimates",
    "Machine",
    "ModelShape",
    "Phase",
    "Sharding",
    "Workload",
    "byte_words",
    "estimate",
    "estimate_workload",
    "find_machine",
    "machine_of",
]
