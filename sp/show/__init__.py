"""Everything that `sp` prints: programs, plans, and the report of what was rewritten and why."""

from sp.show.graph import print_program
from sp.show.grid import plan_grid
from sp.show.report import Report

__all__ = ["Report", "plan_grid", "print_program"]
