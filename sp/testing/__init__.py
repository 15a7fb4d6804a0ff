"""What a test of a parallel program needs; ships with sp because its users need it too."""

from sp.testing.ranks import ProcessWorld, RankFailedError, run_processes, run_ranks

__all__ = ["ProcessWorld", "RankFailedError", "run_processes", "run_ranks"]
