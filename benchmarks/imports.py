"""What `import sp` adds to `import torch`, and what the first look at `sp.parallelize` brings.

    python -m benchmarks imports --repeats 9

Each repetition is a fresh process.  What makes it short is what is not loaded, and tests hold that
(`tests/test_imports.py`); here is the time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark
from benchmarks.timing import Samples

# In order, each in the process of those before: what it is called, and the most that it may take.
STATEMENTS: dict[str, float | None] = {
    "import torch": None,
    "import sp": 0.2,
    "sp.parallelize": None,
    "sp.inspect(torch.nn.Linear(2, 2), (torch.zeros(1, 4, 2),), world_size=2)": None,
}
_CHILD = """
import json, sys, time
found = {}
for statement in json.loads(sys.argv[1]):
    modules, begin = len(sys.modules), time.perf_counter()
    exec(statement)
    found[statement] = time.perf_counter() - begin, len(sys.modules) - modules
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Options:
    repeats: int = 7


def measure() -> dict[str, tuple[float, int]]:
    """Seconds of each statement, and how many modules it loads."""
    command = [sys.executable, "-c", _CHILD, json.dumps(list(STATEMENTS))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (this Python, our own words)
    found: dict[str, tuple[float, int]] = json.loads(done.stdout)
    return found


def run(options: Options) -> Result:
    measure()  # files come from the disk once
    runs = [measure() for _ in range(options.repeats)]
    rows: list[list[Cell]] = [
        [statement, Samples.of(each[statement][0] for each in runs), bound, runs[0][statement][1]]
        for statement, bound in STATEMENTS.items()
    ]
    columns = {"statement": "", "seconds": ".3f", "bound": ".1f", "modules": ""}
    return Result([Table("in a fresh process, one after another", columns, rows)])


BENCHMARK = Benchmark(
    "what `import sp` adds to `import torch`",
    Options(),
    Options(repeats=1),
    run,
)
