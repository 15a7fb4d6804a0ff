"""Worlds to try a parallel program in: of threads (fast, one process, meshes too) or of processes (the real thing)."""

from sp.testing.processes import ProcessWorld, RankFailedError, run_processes
from sp.testing.threads import run_mesh, run_ranks

__all__ = ["ProcessWorld", "RankFailedError", "run_mesh", "run_processes", "run_ranks"]
