"""`python -m tests.mutation`: which mistakes, planted in a file one at a time, its tests do not see.

A sample of the mutants of each file, the same each time.  Those that survive are listed with their line.  What became
of each stands in out/mutation.tried as soon as it is known, numbered: a run that was cut short goes on by
`--range 68 181`.
"""

import argparse
import time
from pathlib import Path

import pytest

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.sample import chosen, draw
from tests.mutation.targets import TARGETS, Target
from tests.mutation.trial import Trials

ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="some of the files, by a part of their names")
    parser.add_argument("--count", type=int, default=200, help="mutants of each file at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=int, nargs="*", help="the mutants of these lines alone")
    parser.add_argument("--range", type=int, nargs=2, metavar=("FIRST", "LAST"), help="some of those drawn, from 1 on")
    parser.add_argument("--log", type=Path, default=ROOT / "out/mutation.log", help="what pytest said of the latest")
    given = parser.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    for target in TARGETS:
        if not given.files or any(part in target.path for part in given.files):
            mutants = mutants_of((ROOT / target.path).read_text())
            drawn = draw(mutants, given.count, given.seed, given.lines)
            print(f"{target.path}: {len(mutants)} mutants, {len(drawn)} drawn", flush=True)
            _try(target, chosen(drawn, *given.range) if given.range else drawn, given.log)


def _try(target: Target, drawn: dict[int, Mutant], log: Path) -> None:
    start = time.monotonic()
    trials = Trials(ROOT / target.path, drawn, log)
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["--no-header", "--no-summary", "--capture=no"]
    code = pytest.main([*options, *target.tests], plugins=[trials])
    assert code == 0, f"pytest ended with {code}, see {log}"
    killed, seconds = len(drawn) - len(trials.alive), time.monotonic() - start
    tried = f"{len(drawn)} tried by {trials.tests} tests, {killed} killed, {len(trials.alive)} alive"
    print(f"{target.path}: {tried}, {seconds:.0f} s")
    for mutant in trials.alive:
        print(f"    {mutant}", flush=True)


if __name__ == "__main__":
    main()
