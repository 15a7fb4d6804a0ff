"""What a test of a parallel program needs; ships with sp because its users need it too."""

from sp.testing.oracle import Verdict, WrongRuleError, check_program, check_rule
from sp.testing.ranks import ProcessWorld, RankFailedError, run_mesh, run_processes, run_ranks

__all__ = [
    "ProcessWorld",
    "RankFailedError",
    "Verdict",
    "WrongRuleError",
    "check_program",
    "check_rule",
    "run_mesh",
    "run_processes",
    "run_ranks",
]
