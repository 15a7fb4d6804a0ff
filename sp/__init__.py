"""Sequence parallelism for long-context transformers, done by a compiler.

pmodel = sp.parallelize(model, strategy="striped")     # same call, same loss, same gradients
"""

from sp import costs, data
from sp.api import check, estimate, inspect, parallelize
from sp.chain import parallelize_chain
from sp.errors import (
    InputError,
    RankMismatchError,
    RuleError,
    SpError,
    StrategyError,
    UnsupportedModelError,
    ValidationError,
)
from sp.measure import measure_machine
from sp.mesh import MeshGroups
from sp.module import ParallelModule
from sp.register import register_rule
from sp.strategy import STRATEGIES
from sp.wiring import fully_shard

__version__ = "0.1.0"

__all__ = [
    "STRATEGIES",
    "InputError",
    "MeshGroups",
    "ParallelModule",
    "RankMismatchError",
    "RuleError",
    "SpError",
    "StrategyError",
    "UnsupportedModelError",
    "ValidationError",
    "check",
    "costs",
    "data",
    "estimate",
    "fully_shard",
    "inspect",
    "measure_machine",
    "parallelize",
    "parallelize_chain",
    "register_rule",
]
