from dataclasses import dataclass
from sp.program import Program
@dataclass(frozen=True)
class Report:
    program: Program
    world: int
    length: int
