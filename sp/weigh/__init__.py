"""Weighing: a captured model → the workload that the cost model estimates."""

from sp.weigh.program import weigh

__all__ = ["weigh"]
