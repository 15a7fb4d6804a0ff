"""The cost model: what a training step takes under each strategy, before anything runs.  Numbers only, no tensors."""

from sp.costs.estimate import Estimate, Estimates, estimate
from sp.costs.machine import MACHINES, Machine
from sp.costs.phase import Phase
from sp.costs.shape import ModelShape

__all__ = ["MACHINES", "Estimate", "Estimates", "Machine", "ModelShape", "Phase", "estimate"]
