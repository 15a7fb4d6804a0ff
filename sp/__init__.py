"""Sequence parallelism for long-context transformers, done by a compiler.

pmodel = sp.parallelize(model, strategy="striped")     # same call, same loss, same gradients
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sp import costs, data
    from sp.api import check, estimate, inspect, parallelize
    from sp.chain import parallelize_chain
    from sp.counting import count
    from sp.errors import (
        InputError,
        RankLostError,
        RankMismatchError,
        RuleError,
        SpError,
        StrategyError,
        UnsupportedModelError,
        ValidationError,
    )
    from sp.faults import failing_together
    from sp.measure import measure_machine
    from sp.mesh import MeshGroups
    from sp.module import ParallelModule
    from sp.register import register_rule
    from sp.strategy import STRATEGIES
    from sp.tracing import trace
    from sp.wiring import fully_shard

__version__ = "0.1.0"

__all__ = [
    "STRATEGIES",
    "InputError",
    "MeshGroups",
    "ParallelModule",
    "RankLostError",
    "RankMismatchError",
    "RuleError",
    "SpError",
    "StrategyError",
    "UnsupportedModelError",
    "ValidationError",
    "check",
    "costs",
    "count",
    "data",
    "estimate",
    "failing_together",
    "fully_shard",
    "inspect",
    "measure_machine",
    "parallelize",
    "parallelize_chain",
    "register_rule",
    "trace",
]

# `import sp` loads none of it: a name brings the module that it lives in when it is first read (PEP 562).
_HOMES = {
    **dict.fromkeys(("check", "estimate", "inspect", "parallelize"), "sp.api"),
    **dict.fromkeys(
        ("InputError", "RankLostError", "RankMismatchError", "RuleError", "SpError", "StrategyError"), "sp.errors"
    ),
    **dict.fromkeys(("UnsupportedModelError", "ValidationError"), "sp.errors"),
    "STRATEGIES": "sp.strategy",
    "MeshGroups": "sp.mesh",
    "failing_together": "sp.faults",
    "ParallelModule": "sp.module",
    "count": "sp.counting",
    "fully_shard": "sp.wiring",
    "measure_machine": "sp.measure",
    "parallelize_chain": "sp.chain",
    "register_rule": "sp.register",
    "trace": "sp.tracing",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # from now on without this function
        return value
    if any(module.name == name for module in iter_modules(__path__)):  # as `sp.testing`, without an import of its own
        return import_module(f"sp.{name}")
    raise AttributeError(f"module 'sp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
